// SPDX-License-Identifier: GPL-2.0-only
/*
 * without [-p] CALL... -- PROGRAM [ARG...] - run it where system calls are missing
 *
 * Each call that is named fails with ENOSYS, as on a kernel that lacks it; with -p with
 * EPERM, as in some containers. Exits with 125 if that cannot be.
 */
#include <stdio.h>
#include <string.h>

#include "../lib/forbid.h"

static const struct {
	const char *name;
	long nr;
} calls[] = {
	{ "process_vm_readv", SYS_process_vm_readv },
	{ "process_vm_writev", SYS_process_vm_writev },
	{ "pwrite64", SYS_pwrite64 },
};

static bool forbid_call(const char *name, int error)
{
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (!strcmp(calls[i].name, name))
			return forbid(calls[i].nr,
				      SECCOMP_RET_ERRNO | (uint32_t)error);
	return false;
}

int main(int argc, char **argv)
{
	int error = ENOSYS, i = 1;

	if (i < argc && !strcmp(argv[i], "-p")) {
		error = EPERM;
		i++;
	}
	for (; i < argc && strcmp(argv[i], "--"); i++)
		if (!forbid_call(argv[i], error)) {
			fprintf(stderr, "without: cannot forbid %s\n", argv[i]);
			return 125;
		}
	if (i + 1 < argc)
		execv(argv[i + 1], argv + i + 1);
	perror("without");
	return 125;
}
