// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* iov.c - what is left of a vector of buffers, when a call did a part of it */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "iov.h"

int fb_iov_begin(struct fb_iov *v, const struct iovec *iov, int n)
{
	v->made = NULL;
	if (n < 0 || n > IOV_MAX)
		return -EINVAL;
	v->at = v->own;
	if (n > FB_IOV) {
		int err = errno;

		v->at = v->made = malloc(sizeof(*iov) * (size_t)n);
		errno = err;
		if (!v->made)
			return -ENOMEM;
	}
	v->n = n;
	if (n)
		memcpy(v->at, iov, sizeof(*iov) * (size_t)n);
	return 0;
}

bool fb_iov_advance(struct fb_iov *v, size_t bytes)
{
	for (; v->n; v->at++, v->n--) {
		if (bytes < v->at->iov_len) {
			v->at->iov_base = (char *)v->at->iov_base + bytes;
			v->at->iov_len -= bytes;
			return true;
		}
		bytes -= v->at->iov_len;
	}
	return false;
}

void fb_iov_end(struct fb_iov *v)
{
	free(v->made);
}

size_t fb_iov_bytes(const struct iovec *iov, int n)
{
	size_t bytes = 0;

	if (n < 0 || n > IOV_MAX)
		return 0;
	for (int i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	return bytes;
}
