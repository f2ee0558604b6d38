/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* iov.h - what is left of a vector of buffers; see iov.c */
#ifndef FB_IOV_H
#define FB_IOV_H

#include <sys/socket.h>
#include <sys/uio.h>

#include "io.h"

#define FB_IOV		8		/* without malloc */
#define FB_IO_MOST	0x7ffff000u	/* as the kernel caps one call */

struct fb_iov {
	struct iovec *at;		/* what is left */
	int n;
	struct iovec own[FB_IOV], *made;
};

/* A copy of iov. 0, -EINVAL, -ENOMEM. In fiber code: it may call malloc. */
int fb_iov_begin(struct fb_iov *v, const struct iovec *iov, int n);
/* So many bytes are done. False: nothing is left. */
bool fb_iov_advance(struct fb_iov *v, size_t bytes);
void fb_iov_end(struct fb_iov *v);
size_t fb_iov_bytes(const struct iovec *iov, int n);

#endif
