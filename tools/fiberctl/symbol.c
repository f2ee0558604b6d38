// SPDX-License-Identifier: GPL-2.0-only
/* symbol.c - where a file of a program has the library's root */
#include <gelf.h>
#include <libelf.h>
#include <string.h>

#include "fiberctl.h"

#define SYMBOL	"fiber_debug_v1"

static uint64_t in_table(Elf *elf, Elf_Scn *scn, const GElf_Shdr *sh)
{
	Elf_Data *data = elf_getdata(scn, NULL);
	GElf_Sym sym;

	if (!data || !sh->sh_entsize)
		return 0;
	for (size_t i = 0; i < sh->sh_size / sh->sh_entsize; i++) {
		const char *name;

		if (!gelf_getsym(data, (int)i, &sym) || !sym.st_value ||
		    GELF_ST_TYPE(sym.st_info) != STT_OBJECT)
			continue;
		name = elf_strptr(elf, sh->sh_link, sym.st_name);
		if (name && !strcmp(name, SYMBOL))
			return sym.st_value;
	}
	return 0;
}

uint64_t symbol_in_elf(Elf *elf, uint64_t *first)
{
	Elf_Scn *scn = NULL;
	GElf_Shdr sh;
	GElf_Phdr ph;
	uint64_t at = 0;
	size_t n = 0;

	while (!at && (scn = elf_nextscn(elf, scn)))
		if (gelf_getshdr(scn, &sh) && (sh.sh_type == SHT_DYNSYM ||
					       sh.sh_type == SHT_SYMTAB))
			at = in_table(elf, scn, &sh);
	elf_getphdrnum(elf, &n);
	for (size_t i = 0; i < n; i++)
		if (gelf_getphdr(elf, (int)i, &ph) && ph.p_type == PT_LOAD) {
			*first = ph.p_vaddr - ph.p_offset;
			return at;
		}
	return 0;
}
