// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_kvm.c - a KVM guest on the CPU of a busy group
 *
 * KVM is the other user of preempt notifiers and user return notifiers: its
 * entries and ours share the lists of a thread and of a CPU.
 */
#include <linux/kvm.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "harness.h"
#include "mix.h"

/* Real mode: a byte to a port, for ever; each is an exit to us. */
static const uint8_t guest_code[] = {
	0xba, 0xf8, 0x03,		/* mov $0x3f8, %dx */
	0xee,				/* out %al, (%dx) */
	0xeb, 0xfd,			/* jmp to the out */
};

struct guest {
	int kvm, vm, cpu;
	struct kvm_run *run;
};

static bool load_guest(struct guest *g)
{
	struct kvm_userspace_memory_region region = {
		.guest_phys_addr = 0x1000, .memory_size = RAW_PAGE };
	void *code = mmap(NULL, RAW_PAGE, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	memcpy(code, guest_code, sizeof(guest_code));
	region.userspace_addr = (uintptr_t)code;
	return !ioctl(g->vm, KVM_SET_USER_MEMORY_REGION, &region);
}

static bool start_guest(struct guest *g)
{
	struct kvm_regs regs = { .rip = 0x1000, .rflags = 2 };
	struct kvm_sregs sregs;
	int size;

	g->vm = ioctl(g->kvm, KVM_CREATE_VM, 0);
	g->cpu = g->vm < 0 ? -1 : ioctl(g->vm, KVM_CREATE_VCPU, 0);
	if (g->cpu < 0 || !load_guest(g))
		return false;
	size = ioctl(g->kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	g->run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, g->cpu, 0);
	if (g->run == MAP_FAILED || ioctl(g->cpu, KVM_GET_SREGS, &sregs))
		return false;
	sregs.cs.base = sregs.cs.selector = 0;
	return !ioctl(g->cpu, KVM_SET_SREGS, &sregs) &&
	       !ioctl(g->cpu, KVM_SET_REGS, &regs);
}

/* Until @end; returns how often the guest came out, or -1. */
static long run_guest(struct guest *g, uint64_t end)
{
	long exits = 0;

	while (raw_now() < end) {
		if (ioctl(g->cpu, KVM_RUN, 0) && errno != EINTR)
			return -1;
		if (g->run->exit_reason == KVM_EXIT_IO)
			exits++;
		else if (g->run->exit_reason != KVM_EXIT_INTR)
			return -1;
	}
	return exits;
}

static unsigned int stop;

static void *hog(void *arg)
{
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	while (!LOAD(stop)) {
		mix_spin(20000);
		raw_exclude();
	}
	raw_leave();
	return NULL;
}

#define NEED_KVM(g) do {						\
	NEED_MODULE();							\
	(g).kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);			\
	if ((g).kvm < 0)						\
		SKIP(return, "no KVM here: %s", strerror(errno));	\
	if (!start_guest(&g))						\
		SKIP(return, "KVM makes no guest: %s", strerror(errno)); \
} while (0)

TEST(kvm_guest_beside_a_group)
{
	struct guest g = {};
	cpu_set_t set;
	long exits;
	pid_t pid;

	NEED_KVM(g);
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(set), &set));
	pid = fork();
	if (!pid)
		mix_child(4);
	exits = run_guest(&g, raw_now() + 3500000000ULL);
	EXPECT_EQ(MIX_WELL, raw_exit_code(pid));
	TH_LOG("%ld exits of the guest", exits);
	EXPECT_LT(0, exits);
}

/* A carrier that runs a guest itself: both notifiers in one thread. */
TEST(kvm_guest_in_fiber)
{
	struct guest g = {};
	pthread_t t;
	long exits;

	NEED_KVM(g);
	START(.quantum_ns = 1000000, .preempt = true);
	t = raw_thread(hog, NULL);
	ASSERT_TRUE(RAW_UNTIL(raw_info->idle == 0));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	exits = run_guest(&g, raw_now() + 2000000000ULL);
	raw_exclude();
	raw_leave();
	STORE(stop, 1);
	raw_detach();
	pthread_join(t, NULL);
	TH_LOG("%ld exits of the guest", exits);
	EXPECT_LT(0, exits);
	EXPECT_EQ(0, raw_acquire_errors);
	EXPECT_EXCLUSIVE();
}

TEST_HARNESS_MAIN
