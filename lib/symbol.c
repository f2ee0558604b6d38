// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * symbol.c - the names of functions, from the symbol tables of their files
 *
 * dladdr takes the loader's lock and knows exported names only. This maps the file
 * an address came from, for as long as a dump lasts, and looks in .symtab, or else
 * .dynsym. A file that has been replaced since it was loaded gives wrong names.
 */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "symbol.h"

#define FILES	8
#define CACHED	64			/* a power of two */

#pragma weak _dl_find_object

/* In libfiber.a: see preempt.c. */
extern const char __start_fb_text[] __attribute__((weak, visibility("hidden")));
extern const char __stop_fb_text[] __attribute__((weak, visibility("hidden")));

struct file {
	const struct link_map *of;
	const char *map;		/* NULL: it has no symbols that we know */
	size_t size;
	const ElfW(Sym) *sym;
	size_t nsym;
	const char *str;
	size_t nstr;
};

static struct {
	struct file file[FILES];
	unsigned int nfile;
	struct {
		uintptr_t ip;
		char text[FB_SYMBOL_MAX];
	} cache[CACHED];
} sy;

/* ---- one file ---- */

static bool inside(const struct file *f, uint64_t off, uint64_t n)
{
	return off <= f->size && n <= f->size - off;
}

/* The table of this type; its strings. */
static bool find_table(struct file *f, unsigned int type)
{
	const ElfW(Ehdr) *eh = (const void *)f->map;
	const ElfW(Shdr) *sh = (const void *)(f->map + eh->e_shoff);

	if (!inside(f, eh->e_shoff, (uint64_t)eh->e_shnum * sizeof(*sh)))
		return false;
	for (int i = 0; i < eh->e_shnum; i++) {
		const ElfW(Shdr) *s = &sh[i], *t;

		if (s->sh_type != type || s->sh_link >= eh->e_shnum)
			continue;
		t = &sh[s->sh_link];
		if (!inside(f, s->sh_offset, s->sh_size) ||
		    !inside(f, t->sh_offset, t->sh_size) || !t->sh_size ||
		    f->map[t->sh_offset + t->sh_size - 1])
			return false;
		f->sym = (const void *)(f->map + s->sh_offset);
		f->nsym = s->sh_size / sizeof(*f->sym);
		f->str = f->map + t->sh_offset;
		f->nstr = t->sh_size;
		return true;
	}
	return false;
}

static void map_file(struct file *f, const char *path)
{
	struct stat s;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	void *m = MAP_FAILED;

	if (fd < 0)
		return;
	if (!fstat(fd, &s) && s.st_size > (off_t)sizeof(ElfW(Ehdr)))
		m = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (m == MAP_FAILED)
		return;
	f->map = m;
	f->size = (size_t)s.st_size;
	if (memcmp(f->map, ELFMAG, SELFMAG) ||
	    (!find_table(f, SHT_SYMTAB) && !find_table(f, SHT_DYNSYM)))
		f->nsym = 0;
}

static struct file *file_of(const struct link_map *l)
{
	struct file *f;

	for (unsigned int i = 0; i < sy.nfile; i++)
		if (sy.file[i].of == l)
			return &sy.file[i];
	if (sy.nfile == FILES)
		return NULL;
	f = &sy.file[sy.nfile++];
	memset(f, 0, sizeof(*f));
	f->of = l;
	map_file(f, l->l_name[0] ? l->l_name : "/proc/self/exe");
	return f;
}

/* The function that begins last before `at` and has not ended by then. */
static const ElfW(Sym) *function_at(const struct file *f, ElfW(Addr) at)
{
	const ElfW(Sym) *best = NULL, *s;

	for (size_t i = 0; i < f->nsym; i++) {
		s = &f->sym[i];
		if (ELF64_ST_TYPE(s->st_info) != STT_FUNC || !s->st_shndx ||
		    s->st_name >= f->nstr || at < s->st_value ||
		    (s->st_size && at >= s->st_value + s->st_size))
			continue;
		if (!best || s->st_value > best->st_value)
			best = s;
	}
	return best;
}

/* ---- names ---- */

/*
 * A name that the compiler gave to its own version of a function, such as
 * f.constprop.0, f.part.0 or f.cold, is that function's, which has no such offset;
 * f.localalias is f.
 */
static void describe_symbol(char *buf, const char *name, size_t offset,
			    const char *object)
{
	size_t n = *name ? 1 + strcspn(name + 1, ".") : 0;
	const char *version = name + n;
	char at[24] = "";

	if (!*version || !strncmp(version, ".localalias", 11))
		snprintf(at, sizeof(at), "+0x%zx", offset);
	snprintf(buf, FB_SYMBOL_MAX, "%.*s%s%s%.30s%s", n < 80 ? (int)n : 80,
		 name, at, *object ? " (" : "", object, *object ? ")" : "");
}

static void describe(char *buf, uintptr_t ip)
{
	struct dl_find_object o;
	const ElfW(Sym) *s;
	const char *object;
	ElfW(Addr) at;
	struct file *f;

	if (!_dl_find_object || _dl_find_object((void *)ip, &o)) {
		snprintf(buf, FB_SYMBOL_MAX, "%p", (void *)ip);
		return;
	}
	at = ip - o.dlfo_link_map->l_addr;
	object = o.dlfo_link_map->l_name;
	object = strrchr(object, '/') ? strrchr(object, '/') + 1 : object;
	f = file_of(o.dlfo_link_map);
	s = f ? function_at(f, at) : NULL;
	if (s)
		describe_symbol(buf, f->str + s->st_name,
				(size_t)(at - s->st_value), object);
	else
		snprintf(buf, FB_SYMBOL_MAX, "%.80s+0x%zx",
			 *object ? object : "main program", (size_t)at);
}

const char *fb_symbol(uintptr_t ip)
{
	size_t i = (ip ^ ip >> 7) % CACHED;

	if (sy.cache[i].ip != ip) {
		describe(sy.cache[i].text, ip);
		sy.cache[i].ip = ip;
	}
	return sy.cache[i].text;
}

bool fb_symbol_ours(uintptr_t ip)
{
	struct dl_find_object us, o;

	return _dl_find_object && !_dl_find_object((void *)fb_symbol, &us) &&
	       !_dl_find_object((void *)ip, &o) &&
	       us.dlfo_link_map == o.dlfo_link_map &&
	       us.dlfo_link_map->l_name[0];	/* not the main program */
}

void fb_symbol_us(uintptr_t *low, uintptr_t *high)
{
	struct dl_find_object us;

	*low = (uintptr_t)__start_fb_text;
	*high = (uintptr_t)__stop_fb_text;
	if (*low || !_dl_find_object || _dl_find_object((void *)fb_symbol, &us))
		return;
	*low = (uintptr_t)us.dlfo_map_start;
	*high = (uintptr_t)us.dlfo_map_end;
}

void fb_symbol_end(void)
{
	for (unsigned int i = 0; i < sy.nfile; i++)
		if (sy.file[i].map)
			munmap((void *)sy.file[i].map, sy.file[i].size);
	memset(&sy, 0, sizeof(sy));
}
