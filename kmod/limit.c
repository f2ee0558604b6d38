// SPDX-License-Identifier: GPL-2.0-only
/*
 * limit.c - how much one user may have, and all of them together
 *
 * Context: process, no lock held that another of ours nests in.
 *
 * A user is who opened the device: its real uid in the initial user namespace,
 * for the group's whole life, whoever uses the descriptor later. An entry lives
 * as long as the user has a group; a group outlives its carriers, so they need
 * no reference of their own. Each processor and each carrier has one hrtimer;
 * the timers of all users together are counted, because expiries are paid by
 * whoever runs on that CPU.
 *
 * Capabilities lift none of this: who may is who writes the parameters.
 */
#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/slab.h>

#include "fault.h"
#include "internal.h"

struct fiber_user {
	struct hlist_node node;
	kuid_t uid;
	unsigned int groups, carriers;
};

static DEFINE_MUTEX(limits);		/* all of the below */
static DEFINE_HASHTABLE(users, 6);
static unsigned int timers;

static struct fiber_user *known(kuid_t uid)
{
	struct fiber_user *u;

	hash_for_each_possible(users, u, node, __kuid_val(uid))
		if (uid_eq(u->uid, uid))
			return u;
	return NULL;
}

static struct fiber_user *known_or_new(kuid_t uid)
{
	struct fiber_user *u = known(uid);

	if (u)
		return u;
	u = fiber_may_fail(kzalloc(sizeof(*u), GFP_KERNEL_ACCOUNT), NULL);
	if (!u)
		return NULL;
	u->uid = uid;
	hash_add(users, &u->node, __kuid_val(uid));
	return u;
}

static void forget(struct fiber_user *u)
{
	if (u->groups)
		return;
	hash_del(&u->node);
	kfree(u);
}

/**
 * fiber_limit_open - the calling user opens the device
 * @g: receives its user
 *
 * Returns 0, -EMFILE or -ENOMEM.
 */
int fiber_limit_open(struct fiber_group *g)
{
	struct fiber_user *u;
	int err = 0;

	mutex_lock(&limits);
	u = known_or_new(current_uid());
	if (!u)
		err = -ENOMEM;
	else if (u->groups >= READ_ONCE(fiber_user_groups))
		err = -EMFILE;
	else
		u->groups++;
	if (u && err)
		forget(u);
	if (!err)
		g->user = u;
	mutex_unlock(&limits);
	return err;
}

/**
 * fiber_limit_close - a group is no more
 * @g: its processors and carriers are given back already
 */
void fiber_limit_close(struct fiber_group *g)
{
	mutex_lock(&limits);
	g->user->groups--;
	forget(g->user);
	mutex_unlock(&limits);
}

/**
 * fiber_limit_timers - may there be more hrtimers?
 * @n: that many
 *
 * Returns 0 or -EAGAIN.
 */
int fiber_limit_timers(unsigned int n)
{
	int err = 0;

	mutex_lock(&limits);
	if (n > READ_ONCE(fiber_max_timers) ||
	    timers > READ_ONCE(fiber_max_timers) - n)
		err = -EAGAIN;
	else
		timers += n;
	mutex_unlock(&limits);
	return err;
}

/**
 * fiber_limit_untimers - some hrtimers are gone
 * @n: that many
 */
void fiber_limit_untimers(unsigned int n)
{
	mutex_lock(&limits);
	timers -= n;
	mutex_unlock(&limits);
}

/**
 * fiber_limit_attach - one more carrier, with its timer
 * @g: its group
 *
 * Returns 0 or -EAGAIN.
 */
int fiber_limit_attach(struct fiber_group *g)
{
	int err = fiber_limit_timers(1);

	if (err)
		return err;
	mutex_lock(&limits);
	if (g->user->carriers >= READ_ONCE(fiber_user_carriers))
		err = -EAGAIN;
	else
		g->user->carriers++;
	mutex_unlock(&limits);
	if (err)
		fiber_limit_untimers(1);
	return err;
}

/**
 * fiber_limit_detach - a carrier is no more
 * @g: its group
 */
void fiber_limit_detach(struct fiber_group *g)
{
	mutex_lock(&limits);
	g->user->carriers--;
	mutex_unlock(&limits);
	fiber_limit_untimers(1);
}
