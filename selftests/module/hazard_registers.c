// SPDX-License-Identifier: GPL-2.0-only
/*
 * hazard_registers.c - AVX-512 and AMX state over a preemption, where the CPU has
 * them; x87, SSE and AVX are in preempt.c and, for RETURN, in block.c
 */
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>

#include "harness.h"
#include "mix.h"

static unsigned int stop, running;

static void *hog(void *arg)
{
	if (raw_attach() || raw_own(FIBER_WAIT_READY))
		return NULL;
	raw_takeover(FIBER_TAKEOVER_READY);
	ADD(running, 1);
	raw_enter();
	while (!LOAD(stop))
		mix_spin(1000);
	raw_exclude();
	raw_leave();
	return NULL;
}

#define ARCH_REQ_XCOMP	0x1023
#define TILEDATA	18

static bool os_saves(uint64_t mask)
{
	unsigned int a, b, c, d, low, high;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
		return false;
	asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (low & mask) == mask;
}

/*
 * Fill, spin until preempted, look. Compared in one asm each, so that nothing
 * else touches the registers: k1, k7, zmm31 and zmm0's upper half.
 */
RAW_TEXT static int avx512_survives(uint64_t seed, volatile uint64_t *count,
				    uint64_t limit)
{
	uint64_t before = *count, k1, z31, z0;
	uint64_t out[8] __attribute__((aligned(64)));

	asm volatile(
		"kmovq	%%rax, %%k1\n\t"
		"vpbroadcastq %%rax, %%zmm31\n\t"
		"vpbroadcastq %%rax, %%zmm0\n"
		"1:	cmp	(%[count]), %[before]\n\t"
		"jne	2f\n\t"
		"sub	$1, %[limit]\n\t"
		"jnz	1b\n"
		"2:\n\t"
		"kmovq	%%k1, %%rdx\n\t"
		"vmovdqa64 %%zmm31, (%%rcx)\n\t"
		"mov	56(%%rcx), %%r8\n\t"
		"vmovdqa64 %%zmm0, (%%rcx)\n\t"
		"mov	56(%%rcx), %%r9\n\t"
		"vzeroupper\n\t"
		"mov	%%rdx, %[k1]\n\t"
		"mov	%%r8, %[z31]\n\t"
		"mov	%%r9, %[z0]\n\t"
		: [k1] "=&r"(k1), [z31] "=&r"(z31), [z0] "=&r"(z0),
		  [limit] "+r"(limit)
		: "a"(seed), "c"(out), [count] "r"(count), [before] "r"(before)
		: "rdx", "r8", "r9", "xmm0", "memory", "cc");
	return k1 == seed && z31 == seed && z0 == seed;
}

TEST(avx512_state)
{
	unsigned int i, good = 0;
	pthread_t t;

	if (!raw_cpu_flag("avx512bw") || !os_saves(0xe6))
		SKIP(return, "no AVX-512: the CPU lacks it");
	START(.quantum_ns = 200000, .preempt = true);
	t = raw_thread(hog, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(running) == 1));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 50; i++)
		good += avx512_survives(0x1234567890abcdefULL * (2 * i + 1),
					(void *)&raw_page->preempts, 2000000000);
	raw_leave();
	STORE(stop, 1);
	raw_detach();
	pthread_join(t, NULL);
	EXPECT_EQ(50, good);
	EXPECT_LE(50, raw_page->preempts);
	EXPECT_EXCLUSIVE();
}

struct tile_config {
	uint8_t palette, start_row, reserved[14];
	uint16_t colsb[16];
	uint8_t rows[16];
} __attribute__((aligned(64)));

/* One tile, 16 rows of 64 bytes, over a preemption. */
RAW_TEXT static void tile_over_preemption(const void *in, void *out,
					  volatile uint64_t *count, uint64_t limit)
{
	uint64_t before = *count;

	asm volatile(
		"tileloadd (%%rcx,%%rax,1), %%tmm0\n"
		"1:	cmp	(%[count]), %[before]\n\t"
		"jne	2f\n\t"
		"sub	$1, %[limit]\n\t"
		"jnz	1b\n"
		"2:	mov	%[out], %%rcx\n\t"
		"tilestored %%tmm0, (%%rcx,%%rax,1)\n\t"
		: [limit] "+r"(limit), "+c"(in)
		: "a"(64L), [out] "r"(out), [count] "r"(count), [before] "r"(before)
		: "memory", "cc");
}

TEST(amx_state)
{
	static uint8_t in[16][64] __attribute__((aligned(64)));
	static uint8_t got[16][64] __attribute__((aligned(64)));
	struct tile_config config = { .palette = 1 };
	unsigned int i, good = 0;
	pthread_t t;

	if (!raw_cpu_flag("amx_tile") || !os_saves(0x60000))
		SKIP(return, "no AMX: the CPU lacks it");
	if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP, TILEDATA))
		SKIP(return, "no permission for AMX: %s", strerror(errno));
	START(.quantum_ns = 200000, .preempt = true);
	t = raw_thread(hog, NULL);
	ASSERT_TRUE(RAW_UNTIL(LOAD(running) == 1));
	config.colsb[0] = 64;
	config.rows[0] = 16;
	asm volatile("ldtilecfg %0" : : "m"(config));
	ASSERT_EQ(0, raw_attach());
	ASSERT_EQ(0, raw_own(FIBER_WAIT_READY));
	raw_takeover(FIBER_TAKEOVER_READY);
	raw_enter();
	for (i = 0; i < 50; i++) {
		memset(in, i + 1, sizeof(in));
		memset(got, 0, sizeof(got));
		tile_over_preemption(in, got, (void *)&raw_page->preempts, 2000000000);
		good += !memcmp(in, got, sizeof(in));
	}
	raw_leave();
	asm volatile("tilerelease");
	STORE(stop, 1);
	raw_detach();
	pthread_join(t, NULL);
	EXPECT_EQ(50, good);
	EXPECT_LE(50, raw_page->preempts);
	EXPECT_EXCLUSIVE();
}

TEST_HARNESS_MAIN
