// SPDX-License-Identifier: GPL-2.0-only
/*
 * raw.c - see raw.h
 */
#include <cpuid.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "raw.h"

_Static_assert(FIBER_IOC_ACQUIRE == 0xfb04, "raw.S has the number");
_Static_assert(offsetof(struct fiber_carrier_page, in_fiber) == 0, "raw.S");
_Static_assert(offsetof(struct fiber_carrier_page, depth) == 16, "raw.S");
_Static_assert(offsetof(struct fiber_carrier_page, slot) == 64, "raw.S");
_Static_assert(offsetof(struct raw_regs, flags) == 120, "raw.S");
_Static_assert(offsetof(struct raw_regs, zone) == 144, "raw.S");
_Static_assert(offsetof(struct raw_regs, vector) == 288, "raw.S");

int raw_fd = -1;
struct fiber_setup_args raw_args;
volatile struct fiber_info_page *raw_info;
volatile struct fiber_hint_page *raw_hint;
static char *processors, *carriers;
static char *xsaves;		/* of xsave_size bytes, one for each carrier */
static size_t xsave_size;

__thread volatile struct fiber_carrier_page *raw_page;
__thread uint32_t raw_index;
__thread void *raw_xsave;

unsigned int raw_violations, raw_acquire_errors, raw_traps;
int raw_acquire_error;
char raw_violation[128];
int raw_avx;
static uint32_t owner_word[1024];

extern char __start_raw_text[], __stop_raw_text[];

uint64_t raw_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

void raw_sleep(unsigned int us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000L };

	nanosleep(&t, NULL);
}

int raw_open(void)
{
	int fd = open("/dev/fiber", O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int raw_ioctl(int fd, unsigned long command, void *arg)
{
	int r = ioctl(fd, command, arg);

	return r < 0 ? -errno : r;
}

void raw_good_setup(struct fiber_setup_args *a, const struct raw_options *o)
{
	memset(a, 0, sizeof(*a));
	a->processors = o->processors ?: 1;
	a->quantum_ns = o->quantum_ns;
	a->grace_ns = o->grace_ns;
	a->return_ip = (uintptr_t)(o->return_entry ?: raw_return);
	a->return_end = (uintptr_t)(o->return_end ?: raw_return_end);
	if (o->preempt)
		a->preempt_ip = (uintptr_t)(o->preempt_entry ?: raw_preempt);
	a->max_carriers = o->max_carriers ?: 64;
	a->min_spares = o->min_spares;
}

static void *map(uint64_t offset, size_t pages, int prot)
{
	void *p = mmap(NULL, pages * RAW_PAGE, prot, MAP_SHARED, raw_fd, offset);

	if (p == MAP_FAILED) {
		perror("# raw: mmap");
		exit(1);
	}
	return p;
}

static bool have_avx(void)
{
	unsigned int a, b, c, d, low, high;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_AVX))
		return false;
	asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (low & 6) == 6;
}

/*
 * Where the preempt entry saves vector registers. From the kernel: a thread that had
 * them of malloc would have an arena, whose lock it takes when it ends, and with a
 * single processor who ends out of fiber can wait for it for ever (see mix.c).
 */
static void map_xsaves(void)
{
	unsigned int a, b, c, d;

	__cpuid_count(0xd, 0, a, b, c, d);
	xsave_size = (b + 63) & ~63UL;
	xsaves = mmap(NULL, raw_args.max_carriers * xsave_size,
		      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (xsaves == MAP_FAILED) {
		perror("# raw: mmap");
		exit(1);
	}
}

/* The pages of raw_fd, which is set up by raw_args. */
void raw_map(void)
{
	raw_info = map(raw_args.off_info, 1, PROT_READ);
	raw_hint = map(raw_args.off_hint, 1, PROT_READ | PROT_WRITE);
	processors = map(raw_args.off_processors, raw_args.processors,
			 PROT_READ | PROT_WRITE);
	carriers = map(raw_args.off_carriers, raw_args.max_carriers,
		       PROT_READ | PROT_WRITE);
	map_xsaves();
}

/* The process's group: opened, set up, mapped. 0 or -errno. */
int raw_start(const struct raw_options *o)
{
	struct fiber_text_args text = {
		.start = (uintptr_t)__start_raw_text,
		.end = (uintptr_t)__stop_raw_text,
	};
	int err;

	raw_avx = have_avx();
	raw_fd = raw_open();
	if (raw_fd < 0)
		return raw_fd;
	raw_good_setup(&raw_args, o);
	err = raw_ioctl(raw_fd, FIBER_IOC_SETUP, &raw_args);
	if (err)
		return err;
	raw_map();
	return o->preempt ? raw_ioctl(raw_fd, FIBER_IOC_TEXT, &text) : 0;
}

volatile struct fiber_processor_page *raw_processor(uint32_t i)
{
	return (void *)(processors + i * RAW_PAGE);
}

volatile struct fiber_carrier_page *raw_carrier(uint32_t i)
{
	return (void *)(carriers + i * RAW_PAGE);
}

/* The calling thread becomes a carrier, without a processor. */
int raw_attach(void)
{
	struct fiber_attach_args a = { .carrier = ~0U };
	int err = raw_ioctl(raw_fd, FIBER_IOC_ATTACH, &a);

	if (err)
		return err;
	raw_xsave = xsaves + a.carrier * xsave_size;
	raw_index = a.carrier;
	raw_page = raw_carrier(a.carrier);
	return 0;
}

int raw_detach(void)
{
	return raw_ioctl(raw_fd, FIBER_IOC_DETACH, NULL);
}

int raw_wait(uint32_t flags, uint64_t deadline, uint32_t *event)
{
	struct fiber_wait_args a = {
		.flags = flags, .deadline_ns = deadline,
		.processor = 0xdeadU, .event = 0xdeadU,
	};
	int err = raw_ioctl(raw_fd, FIBER_IOC_WAIT, &a);

	if (event)
		*event = a.event;
	if (!err && a.processor != raw_page->processor) {
		ADD(raw_violations, 1);
		snprintf(raw_violation, sizeof(raw_violation),
			 "WAIT says processor %u, page %u", a.processor,
			 raw_page->processor);
	}
	return err;
}

/* Wait, whatever signals come, until this carrier owns a processor. */
int raw_own(uint32_t flags)
{
	int err;

	for (;;) {
		err = raw_wait(flags, 0, NULL);
		if (err != -EINTR)
			return err;
		if (raw_page->processor != FIBER_NO_PROCESSOR)
			return 0;
		flags = FIBER_WAIT_READY;
	}
}

void raw_enter(void)
{
	asm volatile("" ::: "memory");
	raw_page->in_fiber = 1;
	asm volatile("" ::: "memory");
}

void raw_leave(void)
{
	asm volatile("" ::: "memory");
	raw_page->in_fiber = 0;
	asm volatile("" ::: "memory");
}

/* Owner, not in fiber. */
/* Of a dead group nobody owns anything: then there is nothing to say. */
void raw_takeover(uint32_t bits)
{
	uint32_t mine = raw_page->processor;

	if (mine != FIBER_NO_PROCESSOR)
		raw_processor(mine)->takeover = bits;
}

static void violated(const char *how, uint32_t p, uint32_t other)
{
	if (LOAD(raw_info->dead))
		return;
	if (ADD(raw_violations, 1) == 1)
		snprintf(raw_violation, sizeof(raw_violation),
			 "%s: carrier %u, processor %u, other %u", how,
			 raw_index, p, other);
}

static void hold_word(uint32_t p)
{
	uint32_t me = raw_index + 1, was;
	int i;

	was = __atomic_exchange_n(&owner_word[p], me, __ATOMIC_SEQ_CST);
	if (was)
		violated("two in one processor", p, was - 1);
	for (i = 0; i < 100; i++)
		asm volatile("pause" ::: "memory");
	was = __atomic_exchange_n(&owner_word[p], 0, __ATOMIC_SEQ_CST);
	if (was != me)
		violated("another came into the processor", p, was - 1);
}

/* In fiber: is there a processor, and nobody else in it? */
void raw_exclude(void)
{
	uint32_t p, owner;

	raw_leave();
	p = raw_page->processor;
	if (p >= raw_args.processors) {
		violated("no processor", p, 0);
	} else {
		owner = raw_processor(p)->owner;
		if (owner != raw_index)
			violated("page names another owner", p, owner);
		else
			hold_word(p);
	}
	raw_enter();
}

/* Called by the PREEMPT trampoline; not in fiber. */
void raw_preempted(void)
{
	int saved = errno;

	raw_page->pending = 0;
	raw_own(FIBER_WAIT_READY | FIBER_WAIT_GIVE);
	errno = saved;
}

static uint64_t field(const char *text, const char *name)
{
	char key[48];
	const char *at;

	snprintf(key, sizeof(key), "fiber-%s:", name);
	at = strstr(text, key);
	return at ? strtoull(at + strlen(key), NULL, 10) : ~0ULL;
}

int raw_get(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	if (n < 0)
		return -errno;
	text[n] = 0;
	return 0;
}

static int read_fdinfo(char *text, size_t size)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", raw_fd);
	return raw_get(path, text, size);
}

uint64_t raw_stat(const char *name)
{
	char text[2048];

	return read_fdinfo(text, sizeof(text)) ? ~0ULL : field(text, name);
}

int raw_stats(struct raw_stats *s)
{
	char text[2048];
	int err = read_fdinfo(text, sizeof(text));

	if (err)
		return err;
	*s = (struct raw_stats){
		.owned = field(text, "owned"), .idle = field(text, "idle"),
		.flight = field(text, "flight"),
		.carriers = field(text, "carriers"),
		.waiting = field(text, "waiting"),
		.spares = field(text, "spares"),
		.blocks = field(text, "blocks"),
		.handoffs = field(text, "handoffs"),
		.grace_returns = field(text, "grace-returns"),
		.edge_returns = field(text, "edge-returns"),
		.returns = field(text, "returns"),
		.preempts = field(text, "preempts"),
		.refused = field(text, "refused"),
		.wakes = field(text, "wakes"),
		.violations = field(text, "violations"),
	};
	return 0;
}

/* Its state and, in the kernel, where it is: the first lines only. */
static void tell_thread(const char *tid)
{
	char path[320], text[512], *line, *rest = text;
	int lines = 5;

	snprintf(path, sizeof(path), "/proc/self/task/%s/syscall", tid);
	if (raw_get(path, text, sizeof(text)))
		return;
	printf("# tell: thread %s: call %.40s:", tid, strtok(text, "\n"));
	snprintf(path, sizeof(path), "/proc/self/task/%s/stack", tid);
	if (!raw_get(path, text, sizeof(text)))
		while (lines-- && (line = strsep(&rest, "\n")) && *line)
			printf(" %.40s", strchr(line, ' ') ?: line);
	printf("\n");
}

static void tell_processor(uint32_t i)
{
	volatile struct fiber_processor_page *p = raw_processor(i);
	volatile struct fiber_carrier_page *c;
	uint32_t owner = p->owner;

	printf("# tell: processor %u: owner %d, takeover %#x, seq %u\n", i, (int)owner,
	       p->takeover, p->seq);
	if (owner == FIBER_NO_CARRIER)
		return;
	c = raw_carrier(owner);
	printf("# tell: carrier %u: in fiber %u, no_preempt %u, processor %d, pending %u, depth %u\n",
	       owner, c->in_fiber, c->no_preempt, (int)c->processor, c->pending,
	       c->depth);
}

/* The pages first: fdinfo's numbers are of a moment later. */
void raw_tell(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	char text[2048], *line, *rest;
	uint32_t i;

	for (i = 0; i < raw_args.processors; i++)
		tell_processor(i);
	while (tasks && (entry = readdir(tasks)))
		if (entry->d_name[0] != '.')
			tell_thread(entry->d_name);
	if (tasks)
		closedir(tasks);
	if (!read_fdinfo(text, sizeof(text)))
		for (rest = text; (line = strsep(&rest, "\n")) && *line;)
			printf("# tell: %s\n", line);
	fflush(stdout);
}

/* References to the module, or -errno. */
int raw_refcnt(void)
{
	char text[32];
	int err = raw_get("/sys/module/fiber/refcnt", text, sizeof(text));

	return err ?: atoi(text);
}

/* Those of earlier tests may be on their way out. */
int raw_base(void)
{
	RAW_UNTIL(raw_refcnt() == 0);
	return raw_refcnt();
}

bool raw_put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool ok = fd >= 0 && write(fd, text, strlen(text)) > 0;
	int err = errno;

	if (fd >= 0)
		close(fd);
	errno = err;
	return ok;
}

bool raw_parameter(const char *name, const char *value)
{
	char path[96];

	snprintf(path, sizeof(path), "/sys/module/fiber/parameters/%s", name);
	return raw_put(path, value);
}

int raw_exit_code(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

bool raw_cpu_flag(const char *name)
{
	char key[32], line[8192];
	FILE *f = fopen("/proc/cpuinfo", "re");
	bool found = false;

	snprintf(key, sizeof(key), " %s", name);
	while (f && !found && fgets(line, sizeof(line), f)) {
		size_t n = strlen(key);
		char *at = strncmp(line, "flags", 5) ? NULL : strstr(line, key);

		found = at && (at[n] == ' ' || at[n] == '\n');
	}
	if (f)
		fclose(f);
	return found;
}

pthread_t raw_thread(void *(*fn)(void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t t;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	err = pthread_create(&t, &attr, fn, arg);
	if (err) {
		printf("# raw: pthread_create: %s\n", strerror(err));
		exit(1);
	}
	return t;
}

pid_t raw_tid(void)
{
	return syscall(SYS_gettid);
}

bool raw_asleep_in(pid_t tid, long nr)
{
	char path[64], text[256];

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	/* "running", or the number and the arguments; -1 in a fault. */
	return tid && !raw_get(path, text, sizeof(text)) &&
	       text[0] >= '0' && text[0] <= '9' && atol(text) == nr;
}

void raw_regs_fill(struct raw_regs *r, uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1, *word = (uint64_t *)r;
	size_t i;

	for (i = 0; i < sizeof(*r) / 8; i++) {
		x = x * 6364136223846793005ULL + 1442695040888963407ULL;
		word[i] = x;
	}
	r->flags = 0x202 | (x >> 7 & RAW_FLAGS);
	r->mxcsr = seed & 1 ? 0x9fc0 : 0x3f80;	/* rounding, DAZ, FTZ */
	r->cw = seed & 1 ? 0x027f : 0x0c7f;
	r->rsp_moved = 0;
}

const char *raw_regs_differ(const struct raw_regs *a, const struct raw_regs *b)
{
	static const char * const name[] = {
		"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8", "r9",
		"r10", "r11", "r12", "r13", "r14", "r15",
	};
	const uint64_t *x = (const uint64_t *)a, *y = (const uint64_t *)b;
	size_t i, width = raw_avx ? 32 : 16;

	for (i = 0; i < 15; i++)
		if (x[i] != y[i])
			return name[i];
	if ((a->flags ^ b->flags) & RAW_FLAGS)
		return "flags";
	if (a->mxcsr != b->mxcsr)
		return "mxcsr";
	if (a->cw != b->cw)
		return "x87 control word";
	if (a->rsp_moved || b->rsp_moved)
		return "rsp";
	if (memcmp(a->zone, b->zone, sizeof(a->zone)))
		return "red zone";
	for (i = 0; i < 16; i++)
		if (memcmp(a->vector[i], b->vector[i], width))
			return "vector registers";
	return NULL;
}
