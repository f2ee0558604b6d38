// SPDX-License-Identifier: GPL-2.0-only
/* check.c - fiberctl check: may the kernel backend be used here; if not, why not */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <linux/fiber.h>

#include "fiberctl.h"

struct findings {
	bool json, any, bad;
};

/* One line; what to do about it, or NULL. */
static void tell(struct findings *k, const char *what, bool good,
		 const char *found, const char *advice)
{
	k->bad |= !good;
	if (!k->json) {
		printf("%-8s %-16s %s%s%s\n", good ? "ok" : "missing", what,
		       found, advice && !good ? ": " : "",
		       advice && !good ? advice : "");
		return;
	}
	printf("%s{\"what\": \"%s\", \"ok\": %s, \"found\": ",
	       k->any ? ",\n " : "[", what, good ? "true" : "false");
	json_string(found);
	printf(", \"advice\": ");
	json_string(advice && !good ? advice : "");
	printf("}");
	k->any = true;
}

/* The first line of a file; false: there is none. */
static bool line_of(const char *path, char *text, size_t size)
{
	FILE *f = fopen(path, "re");
	bool got = f && fgets(text, (int)size, f);

	if (f)
		fclose(f);
	if (!got)
		text[0] = 0;
	text[strcspn(text, "\n")] = 0;
	return got;
}

static void check_kernel(struct findings *k)
{
	unsigned int major = 0, minor = 0;
	struct utsname u;
	char text[140];

	uname(&u);
	sscanf(u.release, "%u.%u", &major, &minor);
	snprintf(text, sizeof(text), "Linux %s %s", u.release, u.machine);
	tell(k, "kernel", (major > 6 || (major == 6 && minor >= 1)) &&
	     !strcmp(u.machine, "x86_64"), text,
	     "the module needs 6.1 or later on x86-64; the user backend works");
}

static bool option_in(FILE *f, const char *option)
{
	char line[256];

	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, option, strlen(option)) &&
		    !strncmp(line + strlen(option), "=y", 2))
			return true;
	return false;
}

static void check_config(struct findings *k)
{
	static const char *const option[] = {
		"CONFIG_PREEMPT_NOTIFIERS", "CONFIG_USER_RETURN_NOTIFIER",
	};
	char path[128];
	struct utsname u;
	FILE *f;

	uname(&u);
	snprintf(path, sizeof(path), "/boot/config-%s", u.release);
	for (int i = 0; i < 2; i++) {
		f = fopen(path, "re");
		if (!f) {
			tell(k, "configuration", true,
			     "not known: there is no file of it in /boot", NULL);
			return;
		}
		tell(k, "configuration", option_in(f, option[i]), option[i],
		     "this kernel was built without it: use one that has KVM");
		fclose(f);
	}
}

static void check_lockdown(struct findings *k)
{
	char text[128];
	bool locked;

	if (!line_of("/sys/kernel/security/lockdown", text, sizeof(text)))
		return;
	locked = !strstr(text, "[none]");
	tell(k, "lockdown", true, locked ?
	     "the kernel is locked down (Secure Boot): the module must be signed, mokutil --import /var/lib/dkms/mok.pub" :
	     "none: unsigned modules can be loaded", NULL);
}

static void check_module(struct findings *k)
{
	char text[64], line[200];
	bool there = !access("/sys/module/fiber", F_OK);

	line_of("/sys/module/fiber/version", text, sizeof(text));
	snprintf(line, sizeof(line), "fiber.ko %s%sis %sloaded", text,
		 *text ? " " : "", there ? "" : "not ");
	tell(k, "module", there, line,
	     "modprobe fiber; if there is none: make modules && make insmod, or DKMS (README)");
}

/* What it was loaded with, if it has parameters. */
static void check_parameters(struct findings *k)
{
	char path[600], value[64], text[400] = "";
	DIR *dir = opendir("/sys/module/fiber/parameters");
	struct dirent *e;
	size_t n = 0;

	while (dir && (e = readdir(dir)) && n < sizeof(text) - 100) {
		snprintf(path, sizeof(path), "/sys/module/fiber/parameters/%s",
			 e->d_name);
		if (e->d_name[0] != '.' && line_of(path, value, sizeof(value)))
			n += (size_t)snprintf(text + n, sizeof(text) - n,
					      "%s%.30s=%.30s", n ? " " : "",
					      e->d_name, value);
	}
	if (dir)
		closedir(dir);
	if (n)
		tell(k, "parameters", true, text, NULL);
}

static void check_device(struct findings *k)
{
	struct fiber_query_args q = { 0 };
	int fd = open("/dev/fiber", O_RDWR | O_CLOEXEC);
	char text[160];

	if (fd < 0) {
		snprintf(text, sizeof(text), "/dev/fiber: %s", strerror(errno));
		tell(k, "device", false, text, errno == EACCES ?
		     "you must be in its group: adduser YOU fiber, and log in again" :
		     "it comes with the module");
		return;
	}
	if (ioctl(fd, FIBER_IOC_QUERY, &q)) {
		snprintf(text, sizeof(text), "/dev/fiber answers: %s",
			 strerror(errno));
		tell(k, "device", false, text, "is it of another module?");
	} else {
		snprintf(text, sizeof(text),
			 "/dev/fiber, interface %llu, up to %llu processors and %llu carriers",
			 (unsigned long long)q.api,
			 (unsigned long long)q.max_processors,
			 (unsigned long long)q.max_carriers);
		tell(k, "device", q.api == FIBER_API_VERSION, text,
		     "module and fiberctl are of different versions");
	}
	close(fd);
}

int cmd_check(int argc, char **argv, bool json)
{
	struct findings k = { .json = json };

	(void)argv;
	if (argc > 1) {
		fprintf(stderr, "usage: fiberctl check [--json]\n");
		return EXIT_USAGE;
	}
	check_kernel(&k);
	check_config(&k);
	check_lockdown(&k);
	check_module(&k);
	check_parameters(&k);
	check_device(&k);
	if (json)
		puts("]");
	else
		puts(k.bad ? "\nPrograms run on the user backend here." :
			     "\nPrograms can use the kernel backend.");
	return k.bad ? EXIT_FAILED : EXIT_FINE;
}
