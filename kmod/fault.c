// SPDX-License-Identifier: GPL-2.0-only
/*
 * fault.c - the countdown of fault.h; only in the test module
 *
 * Context: process, or module load. Writing n to the parameter fail_nth arms the
 * writer's thread; n given at insmod arms insmod's. Reading it tells how much
 * is left: 0 and less mean that the failure has happened.
 */
#include <linux/module.h>
#include <linux/sched.h>

#include "fault.h"

static struct task_struct *victim;	/* compared only */
static int left;

static int set_nth(const char *value, const struct kernel_param *param)
{
	int err = param_set_int(value, param);

	if (!err)
		WRITE_ONCE(victim, current);
	return err;
}

static const struct kernel_param_ops nth_ops = {
	.set = set_nth,
	.get = param_get_int,
};

module_param_cb(fail_nth, &nth_ops, &left, 0600);
MODULE_PARM_DESC(fail_nth, "TEST ONLY: the n-th thing that can fail does, in the thread that writes this");

/* Does this one fail? */
bool fiber_fault(void)
{
	return READ_ONCE(victim) == current && left > 0 && --left == 0;
}
