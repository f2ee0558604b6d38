// SPDX-License-Identifier: GPL-2.0-only
/*
 * main.c - /dev/fiber comes and goes
 */
#include <linux/miscdevice.h>
#include <linux/module.h>

#include "fault.h"
#include "internal.h"

unsigned int fiber_max_carriers = 16384;
module_param_named(max_carriers, fiber_max_carriers, uint, 0644);
MODULE_PARM_DESC(max_carriers, "carriers a group may have (default 16384)");

unsigned int fiber_user_groups = 1024;
module_param_named(groups_per_user, fiber_user_groups, uint, 0644);
MODULE_PARM_DESC(groups_per_user, "open /dev/fiber files a user may have (default 1024)");

unsigned int fiber_user_carriers = 32768;
module_param_named(carriers_per_user, fiber_user_carriers, uint, 0644);
MODULE_PARM_DESC(carriers_per_user, "carriers a user may have in all groups (default 32768)");

unsigned int fiber_max_timers = 131072;
module_param_named(max_timers, fiber_max_timers, uint, 0644);
MODULE_PARM_DESC(max_timers, "timers of all users: one a processor, one a carrier (default 131072)");

unsigned int fiber_min_quantum_us = 50;
module_param_named(min_quantum_us, fiber_min_quantum_us, uint, 0644);
MODULE_PARM_DESC(min_quantum_us, "shortest quantum a group may ask for (default 50, never less)");

bool fiber_check;
module_param_named(check, fiber_check, bool, 0644);
MODULE_PARM_DESC(check, "verify owners + idle + in flight = N at every transition (see fdinfo)");

bool fiber_hooks;
module_param_named(hooks, fiber_hooks, bool, 0444);
MODULE_PARM_DESC(hooks, "scheduler hooks on from load to unload, not only while groups are open");

static struct miscdevice fiber_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "fiber",
	.fops = &fiber_group_fops,
	.mode = 0660,
};

static int __init fiber_init(void)
{
	int err = fiber_carrier_start();

	if (err)
		return err;
	err = fiber_may_fail(misc_register(&fiber_device), -ENOMEM);
	if (err)
		fiber_carrier_stop();
	return err;
}

static void __exit fiber_exit(void)
{
	misc_deregister(&fiber_device);
	fiber_carrier_stop();
}

module_init(fiber_init);
module_exit(fiber_exit);

MODULE_AUTHOR("The Fiber developers");
MODULE_DESCRIPTION("Hands the right to run from a thread that blocks to one that can run");
MODULE_VERSION(FIBER_VERSION);
MODULE_LICENSE("GPL");
