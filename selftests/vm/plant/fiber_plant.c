// SPDX-License-Identifier: GPL-2.0-only
/*
 * fiber_plant.c - one planted bug, to see that the debug kernels' reports fail
 * a run. Never part of fiber.ko.
 *
 *	insmod fiber_plant.ko kind=kasan | lock | sleep | object | shift | leak | race
 */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/timer.h>

static char *kind = "";
module_param(kind, charp, 0444);
MODULE_PARM_DESC(kind, "which bug");

static DEFINE_MUTEX(one);
static DEFINE_MUTEX(two);
static struct timer_list timer;
static int shared;

static void use_after_free(void)
{
	volatile char *p = kmalloc(64, GFP_KERNEL);

	kfree((void *)p);
	p[8] = 1;
}

static void both_orders(void)
{
	mutex_lock(&one);
	mutex_lock(&two);
	mutex_unlock(&two);
	mutex_unlock(&one);
	mutex_lock(&two);
	mutex_lock(&one);
	mutex_unlock(&one);
	mutex_unlock(&two);
}

static void sleep_in_atomic(void)
{
	preempt_disable();
	might_sleep();
	preempt_enable();
}

static void nothing(struct timer_list *t) { }

/* Initialised again while it is armed. */
static void live_object(void)
{
	mod_timer(&timer, jiffies + 1000 * HZ);
	timer_setup(&timer, nothing, 0);
}

static void shift_too_far(void)
{
	volatile int by = 40;

	shared = 1 << by;
}

static noinline void leak(void)
{
	void *volatile p = kmalloc(192, GFP_KERNEL);

	p = NULL;
	(void)p;
}

static int adds(void *arg)
{
	while (!kthread_should_stop()) {
		shared++;
		cpu_relax();
		cond_resched();
	}
	return 0;
}

static void race(void)
{
	struct task_struct *a = kthread_run(adds, NULL, "plant-a");
	struct task_struct *b = kthread_run(adds, NULL, "plant-b");

	msleep(8000);
	kthread_stop(a);
	kthread_stop(b);
}

static const struct {
	const char *kind;
	void (*run)(void);
} bugs[] = {
	{ "kasan", use_after_free }, { "lock", both_orders },
	{ "sleep", sleep_in_atomic }, { "object", live_object },
	{ "shift", shift_too_far }, { "leak", leak }, { "race", race },
};

static int __init plant_init(void)
{
	int i;

	timer_setup(&timer, nothing, 0);
	for (i = 0; i < ARRAY_SIZE(bugs); i++)
		if (!strcmp(kind, bugs[i].kind))
			bugs[i].run();
	return 0;
}

static void __exit plant_exit(void)
{
	timer_delete_sync(&timer);
}

module_init(plant_init);
module_exit(plant_exit);
MODULE_DESCRIPTION("Planted bugs for the detectors of the debug kernels");
MODULE_LICENSE("GPL");
