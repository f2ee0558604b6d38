// SPDX-License-Identifier: GPL-2.0-only
/*
 * quantum.c - a fiber has run for long while others are ready
 *
 * Context: hard irq on the carrier's CPU (the timer, the hurry irq_work), or
 * the carrier itself with irqs off.
 *
 * One hrtimer a carrier, armed lazily. It is never cancelled when the carrier
 * leaves the CPU: an expiry that finds somebody else there stops, and
 * sched_in arms it again, which also moves it to the new CPU. But a timer
 * whose callback runs cannot be moved: armed by sched_in on CPU 2 while the
 * expiry of before still runs on CPU 1, it stays on CPU 1, where its carrier is
 * not. So an expiry that ->tick_cpu says belongs elsewhere is sent there by
 * the hurry call, and that follows ->tick_cpu until it has caught up:
 *
 *   sched_in on CPU 2                 expiry on CPU 1
 *     tick_cpu = 2                      carrier is not current: stop, but
 *     hrtimer_start (under the          read tick_cpu: 2 -> call CPU 2
 *     timer base's lock)
 *
 * The look may miss the store only if hrtimer_start comes after the callback
 * has begun, and then there is another expiry on CPU 1, which sees it (the
 * base's lock orders them). (The grace timer does not care where it fires.)
 * An expiry before
 * the fiber has had its quantum (the processor came later, or another fiber has
 * started since, by page->seq) re-arms for what is left. A quantum belongs to
 * the processor: a carrier that takes it over while its owner is blocked
 * continues the quantum (same_quantum() in processor.c).
 */

#include <asm/irq_regs.h>

#include "compat.h"
#include "internal.h"

static void tick_in(struct fiber_carrier *c, u64 ns)
{
	WRITE_ONCE(c->tick_cpu, smp_processor_id());
	hrtimer_start(&c->quantum, ns_to_ktime(ns), HRTIMER_MODE_REL_PINNED_HARD);
}

/*
 * The notifier list of this CPU has no lock but "irqs off": an interrupt may
 * change it if it came from user mode, or if nothing but itself disables
 * preemption (so nobody is inside user_return_notifier_register, KVM included).
 */
static bool may_arm(void)
{
	struct pt_regs *regs = get_irq_regs();

	if (regs && user_mode(regs))
		return true;
	return IS_ENABLED(CONFIG_PREEMPT_COUNT) && preempt_count() == HARDIRQ_OFFSET;
}

/*
 * Has the fiber on current's processor had its quantum, while others are ready?
 * If not, *next says when to look again.
 */
static bool due(struct fiber_carrier *c, struct fiber_processor *p, u64 *next)
{
	u64 now = ktime_get_mono_fast_ns(), quantum = c->group->quantum_ns, end;
	u32 seq = READ_ONCE(p->page->seq);

	if (seq != p->seq) {
		p->seq = seq;
		p->fiber_since = now;
		WRITE_ONCE(c->run_since, now);
	}
	end = p->fiber_since + quantum;
	if (READ_ONCE(c->early))
		end = min(end, c->run_since + min_t(u64, FIBER_MIN_RUN_NS, quantum));
	*next = end > now ? end - now : quantum;
	return end <= now && fiber_contended(p) && !c->want_preempt;
}

/* From an interrupt. Returns how long until the next look. */
static u64 look(struct fiber_carrier *c, struct fiber_processor *p)
{
	u64 next;

	if (!due(c, p, &next))
		return next;
	if (!may_arm())
		return min_t(u64, FIBER_RETRY_NS, c->group->quantum_ns);
	c->want_preempt = true;
	fiber_upcall_arm(c);
	return next;
}

/*
 * Hard irq, on the CPU where the owner of the processor was seen last. It may
 * have gone on to another since: follow it there.
 */
static void hurry(void *info)
{
	struct fiber_processor *p = info;
	struct fiber_group *g = p->group;
	struct fiber_carrier *c;
	unsigned long flags;
	bool mine = false;
	int cpu = -1;

	/* An owner that is current stays the owner while this interrupt lasts. */
	raw_spin_lock_irqsave(&g->lock, flags);
	c = p->owner;
	if (c && !READ_ONCE(c->waiting) && !READ_ONCE(c->gone)) {
		mine = c->task == current;
		cpu = READ_ONCE(c->tick_cpu);
	}
	raw_spin_unlock_irqrestore(&g->lock, flags);
	if (mine)
		tick_in(c, look(c, p));
	else if (cpu >= 0 && cpu != smp_processor_id() &&
		 !smp_call_function_single_async(cpu, &p->hurry))
		return;
	/* The last touch of p. Pairs with the acquire in fiber_quantum_hurry_sync. */
	atomic_set_release(&p->hurrying, 0);
}

/**
 * fiber_quantum_hurry_init - prepare the call of a processor
 * @p: new
 */
void fiber_quantum_hurry_init(struct fiber_processor *p)
{
	INIT_CSD(&p->hurry, hurry, p);
}

/**
 * fiber_quantum_hurry - look at once whether the owner's quantum is over
 * @p: whose fiber has run longest, or whose tick went astray
 * @cpu: where its owner was seen last
 *
 * Context: process or hard irq, no lock held. Returns false if a call is under
 * way, which may just have missed the owner. A CPU that is gone runs nobody.
 */
bool fiber_quantum_hurry(struct fiber_processor *p, int cpu)
{
	if (!p->group->preempt_ip)
		return true;
	if (atomic_cmpxchg(&p->hurrying, 0, 1))
		return false;
	if (smp_call_function_single_async(cpu, &p->hurry))
		atomic_set(&p->hurrying, 0);
	return true;
}

/*
 * An expiry for a carrier that is not current here. If the call cannot be sent,
 * the timer is started once more; it is this callback's own base that it is on,
 * whoever else starts it meanwhile.
 */
static void tick_elsewhere(struct fiber_carrier *c)
{
	struct fiber_processor *p = READ_ONCE(c->processor);
	int cpu = READ_ONCE(c->tick_cpu);

	if (cpu == smp_processor_id() || !p)
		return;
	if (!fiber_quantum_hurry(p, cpu))
		hrtimer_start(&c->quantum, ns_to_ktime(FIBER_RETRY_NS),
			      HRTIMER_MODE_REL_PINNED_HARD);
}

static enum hrtimer_restart tick(struct hrtimer *timer)
{
	struct fiber_carrier *c = container_of(timer, struct fiber_carrier, quantum);
	struct fiber_processor *p;

	if (c->task != current) {
		tick_elsewhere(c);
		return HRTIMER_NORESTART;
	}
	p = READ_ONCE(c->processor);
	if (!p || READ_ONCE(c->waiting) || READ_ONCE(c->gone))
		return HRTIMER_NORESTART;
	hrtimer_forward_now(timer, ns_to_ktime(look(c, p)));
	return HRTIMER_RESTART;
}

/**
 * fiber_quantum_hurry_sync - wait until no call is under way
 * @p: nobody waits for a processor of its group any more. Context: process.
 */
void fiber_quantum_hurry_sync(struct fiber_processor *p)
{
	/* Pairs with the release in hurry(). */
	while (atomic_read_acquire(&p->hurrying))
		cpu_relax();
}

/**
 * fiber_quantum_init - prepare the timer of a carrier
 * @c: new
 */
void fiber_quantum_init(struct fiber_carrier *c)
{
	c->tick_cpu = -1;
	fiber_compat_timer(&c->quantum, tick, HRTIMER_MODE_REL_PINNED_HARD);
}

/**
 * fiber_quantum_resume - the carrier, which owns a processor, is on this CPU
 * @c: current. Context: preemption off.
 */
void fiber_quantum_resume(struct fiber_carrier *c)
{
	struct fiber_processor *p = READ_ONCE(c->processor);
	unsigned long flags;
	u64 next;

	if (!p || fiber_quantum_ticks(c))
		return;
	local_irq_save(flags);
	if (due(c, p, &next)) {
		c->want_preempt = true;
		fiber_upcall_arm(c);
	}
	tick_in(c, next);
	local_irq_restore(flags);
}

/**
 * fiber_quantum_start - the carrier has just got a processor
 * @c: current. Context: process.
 */
void fiber_quantum_start(struct fiber_carrier *c)
{
	preempt_disable();
	fiber_quantum_resume(c);
	preempt_enable();
}

/**
 * fiber_quantum_retry - a preemption was refused; look again soon
 * @c: current. Context: irqs off.
 */
void fiber_quantum_retry(struct fiber_carrier *c)
{
	tick_in(c, min_t(u64, FIBER_RETRY_NS, c->group->quantum_ns));
}
