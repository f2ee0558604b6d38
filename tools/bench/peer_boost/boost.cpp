// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * boost.cpp - the rows for Boost.Fiber and Boost.Context
 *
 * One processor: round robin and pooled stacks. Two: work stealing and stacks
 * from malloc, since the pool may not be shared. Children run first. Its queues
 * are first in, first out: fib(30) would need many GB, so fib(24).
 */
#include <boost/fiber/all.hpp>
#include <boost/context/detail/fcontext.hpp>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../bench.h"

namespace fibers = boost::fibers;
namespace context = boost::context::detail;

static const std::size_t stack_size = 16384;
static fibers::pooled_fixedsize_stack pooled(stack_size);
static fibers::fixedsize_stack unpooled(stack_size);
static bool several;

template <typename F> static fibers::fiber start(F fn)
{
	if (several)
		return fibers::fiber(fibers::launch::dispatch,
				     std::allocator_arg, unpooled, fn);
	return fibers::fiber(fibers::launch::dispatch,
			     std::allocator_arg, pooled, fn);
}

static void jumper(context::transfer_t t)
{
	for (;;)
		t = context::jump_fcontext(t.fctx, nullptr);
}

static void switches(long n)
{
	static char stack[stack_size] __attribute__((aligned(16)));
	context::fcontext_t f = context::make_fcontext(stack + stack_size,
						       stack_size, jumper);

	for (n /= 2; n > 0; n--)
		f = context::jump_fcontext(f, nullptr).fctx;
}

static void yield()
{
	boost::this_fiber::yield();
}

static void spawn(long n)
{
	while (n--)
		start([] {}).join();
}

static void yields(struct bench_yield *y)
{
	std::vector<fibers::fiber> f;

	for (long i = 0; i < y->fibers; i++)
		f.push_back(start([y] { bench_yielder(y, yield); }));
	for (auto &i : f)
		i.join();
}

static long fib(long n)
{
	long a, b;

	if (n < 2)
		return n;
	auto x = start([&a, n] { a = fib(n - 1); });
	auto y = start([&b, n] { b = fib(n - 2); });
	x.join();
	y.join();
	return a + b;
}

static long skynet_node(long first, long size)
{
	long part[10], sum = 0;
	fibers::fiber f[10];

	if (size == 1)
		return first;
	for (long i = 0; i < 10; i++)
		f[i] = start([&part, i, first, size] {
			part[i] = skynet_node(first + i * size / 10, size / 10);
		});
	for (long i = 0; i < 10; i++) {
		f[i].join();
		sum += part[i];
	}
	return sum;
}

static long skynet(long leaves)
{
	return skynet_node(0, leaves);
}

/* Its buffered channel keeps one value less than its size, a power of two. */
template <typename C> static void flow(long n, C &c)
{
	auto f = start([&c, n] {
		long v;

		for (long i = 0; i < n; i++)
			if (c.pop(v) != fibers::channel_op_status::success ||
			    v != i)
				abort();
	});

	for (long i = 0; i < n; i++)
		if (c.push(i) != fibers::channel_op_status::success)
			abort();
	f.join();
}

static void hop(long n)
{
	fibers::unbuffered_channel<long> c;

	flow(n, c);
}

static void buffered(long n)
{
	fibers::buffered_channel<long> c(BENCH_SLOTS);

	flow(n, c);
}

static void lockers(long n, bool yields)
{
	struct bench_lock b = { n, 0, 0 };
	fibers::mutex m;
	fibers::fiber f[BENCH_LOCKERS];

	for (auto &i : f)
		i = start([&b, &m, yields] {
			long n = bench_lockers_ready(&b, yield);

			while (n--) {
				m.lock();
				b.count++;
				if (yields)
					yield();
				m.unlock();
			}
		});
	for (auto &i : f)
		i.join();
	bench_lockers_end(&b);
}

static void mutex(long n)
{
	lockers(n, false);
}

static void mutex_yield(long n)
{
	lockers(n, true);
}

/* ---- Boost.Context: the raw switch, as a coroutine with a value ---- */

static void echo(context::transfer_t t)
{
	for (;;)
		t = context::jump_fcontext(t.fctx, t.data);
}

static void coro(long n)
{
	static char stack[stack_size] __attribute__((aligned(16)));
	context::transfer_t t = { context::make_fcontext(stack + stack_size,
							 stack_size, echo),
				  nullptr };

	while (n--)
		t = context::jump_fcontext(t.fctx, (void *)n);
}

/* Its own type, with pooled stacks. */
static void coro_create(long n)
{
	static boost::context::pooled_fixedsize_stack stacks(stack_size);

	while (n--) {
		boost::context::fiber f(std::allocator_arg, stacks,
			[](boost::context::fiber &&back) {
				return std::move(back);
			});

		f = std::move(f).resume();
	}
}

static struct bench_ops ops = {
	switches, switches, spawn, yields, fib, 24, skynet, nullptr,
};

/* The second processor: a thread that steals until the process ends. */
static void steal()
{
	fibers::mutex m;
	fibers::condition_variable never;
	std::unique_lock<fibers::mutex> lock(m);

	fibers::use_scheduling_algorithm<fibers::algo::work_stealing>(2);
	never.wait(lock, [] { return false; });
}

int main(int argc, char **argv)
{
	ops.hop = hop;
	ops.buffered = buffered;
	ops.mutex = mutex;
	ops.mutex_yield = mutex_yield;
	ops.coro = coro;
	ops.coro_create = coro_create;
	several = bench_processors(argc, argv) > 1;
	if (several) {
		std::thread(steal).detach();
		fibers::use_scheduling_algorithm<fibers::algo::work_stealing>(2);
	}
	int r = bench_main(argc, argv, &ops);
	fflush(nullptr);
	_Exit(r);
}
