/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * beneath.c - open a file under the root, and nothing outside it
 *
 * The kernel does it (openat2, RESOLVE_BENEATH, Linux 5.6). Where it cannot or
 * a sandbox forbids the call, the path is walked one name at a time, holding a
 * descriptor of each directory on the way: ".." (from a symbolic link; a
 * request has none left) steps back to the one held before, so a rename
 * meanwhile moves nobody out. Both follow symbolic links that stay beneath;
 * an absolute one, or one that climbs out, is -EXDEV.
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "httpd.h"

/* O_NONBLOCK: opening a FIFO must not wait. Files do not care. */
#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)

enum { DEPTH_MAX = 32, LINKS_MAX = 16 };

struct walk {
	int dir[DEPTH_MAX];	/* dir[0] is the root, not ours to close */
	int depth;
	int links;
	char rest[PATH_MAX];	/* what is still to be walked */
};

static int openat2_beneath(const char *path)
{
	struct open_how how = {
		.flags = OPEN_FLAGS,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
	};

	for (int tries = 0; tries < 8; tries++) {
		long fd = syscall(SYS_openat2, srv.root, path, &how, sizeof(how));

		if (fd >= 0)
			return (int)fd;
		if (errno != EAGAIN && errno != EINTR)
			break;	/* EAGAIN: a rename raced with us */
	}
	return -errno;
}

bool beneath_has_openat2(void)
{
	int fd = openat2_beneath(".");

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* Puts the link's target in front of the rest. */
static int walk_link(struct walk *w, int link)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(link, "", target, sizeof(target) - 1);
	size_t left = strlen(w->rest);

	if (n < 0)
		return -errno;
	if (++w->links > LINKS_MAX)
		return -ELOOP;
	if (n == 0 || target[0] == '/')
		return -EXDEV;
	if ((size_t)n + 1 + left >= sizeof(w->rest))
		return -ENAMETOOLONG;
	memmove(w->rest + n + 1, w->rest, left + 1);
	memcpy(w->rest, target, (size_t)n);
	w->rest[n] = '/';
	return 0;
}

static int walk_up(struct walk *w)
{
	if (w->depth == 0)
		return -EXDEV;
	close(w->dir[w->depth--]);
	return 0;
}

/* Takes fd over. */
static int walk_down(struct walk *w, int fd)
{
	if (w->depth + 1 == DEPTH_MAX) {
		close(fd);
		return -ENAMETOOLONG;
	}
	w->dir[++w->depth] = fd;
	return 0;
}

static int walk_file(struct walk *w, const char *name, int *file)
{
	if (w->rest[strspn(w->rest, "/")])
		return -ENOTDIR;
	*file = openat(w->dir[w->depth], name, OPEN_FLAGS | O_NOFOLLOW);
	return *file < 0 ? -errno : 1;
}

/* 1: *file is open; 0: a directory was entered, or a link taken into rest. */
static int walk_name(struct walk *w, const char *name, int *file)
{
	int fd = openat(w->dir[w->depth], name,
			O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	int r;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0)
		r = -errno;
	else if (S_ISDIR(st.st_mode))
		return walk_down(w, fd);
	else if (S_ISLNK(st.st_mode))
		r = walk_link(w, fd);
	else
		r = walk_file(w, name, file);
	close(fd);
	return r;
}

/* Takes the first name off the rest; false: there is none. */
static bool walk_next(struct walk *w, char name[NAME_MAX + 2])
{
	char *start = w->rest + strspn(w->rest, "/");
	size_t n = strcspn(start, "/"), keep = n > NAME_MAX ? NAME_MAX + 1 : n;

	memcpy(name, start, keep);	/* too long: openat says so */
	name[keep] = '\0';
	memmove(w->rest, start + n, strlen(start + n) + 1);
	return n > 0;
}

static int walk_open(const char *path)
{
	struct walk w = { .dir = { srv.root } };
	char name[NAME_MAX + 2];
	int r = 0, file = -1;

	if ((size_t)snprintf(w.rest, sizeof(w.rest), "%s", path) >=
	    sizeof(w.rest))
		return -ENAMETOOLONG;
	while (!r && walk_next(&w, name)) {
		if (!strcmp(name, ".."))
			r = walk_up(&w);
		else if (strcmp(name, "."))
			r = walk_name(&w, name, &file);
	}
	if (!r) {
		file = openat(w.dir[w.depth], ".", OPEN_FLAGS | O_DIRECTORY);
		r = file < 0 ? -errno : 1;
	}
	while (w.depth > 0)
		close(w.dir[w.depth--]);
	return r < 0 ? r : file;
}

int beneath_open(const char *path)
{
	path += strspn(path, "/");
	if (!*path)
		path = ".";
	return srv.walk ? walk_open(path) : openat2_beneath(path);
}
