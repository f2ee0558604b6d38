// SPDX-License-Identifier: GPL-2.0-only
/*
 * page.c - the pages that user space and the module share
 *
 * Context: process. Each page is zeroed, charged to the caller's memory cgroup,
 * belongs to the group until it is freed (a mapping holds the file, so the
 * group) and carries no kernel pointer. Mappings are not inherited by fork and
 * cannot grow; the info page is never writable.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/slab.h>

#include "compat.h"
#include "fault.h"
#include "internal.h"

static void *alloc(void)
{
	return (void *)fiber_may_fail(get_zeroed_page(GFP_KERNEL_ACCOUNT), 0);
}

/**
 * fiber_page_table - zeroed memory for a table of a group, charged to the caller
 * @n: entries
 * @size: of one
 */
void *fiber_page_table(size_t n, size_t size)
{
	return fiber_may_fail(kvcalloc(n, size, GFP_KERNEL_ACCOUNT), NULL);
}

/**
 * fiber_page_setup - allocate what SETUP needs
 * @g: nr_processors and max_carriers are set
 *
 * Returns 0 or -ENOMEM; what was allocated stays for fiber_page_free.
 */
int fiber_page_setup(struct fiber_group *g)
{
	u32 i;

	BUILD_BUG_ON(sizeof(struct fiber_info_page) != 64);
	BUILD_BUG_ON(sizeof(struct fiber_hint_page) != 64);
	BUILD_BUG_ON(sizeof(struct fiber_processor_page) != 128);
	BUILD_BUG_ON(offsetof(struct fiber_processor_page, owner) != 64);
	BUILD_BUG_ON(sizeof(struct fiber_carrier_page) != 192);
	BUILD_BUG_ON(offsetof(struct fiber_carrier_page, slot) != 64);

	g->info = alloc();
	g->hint = alloc();
	g->processor = fiber_page_table(g->nr_processors, sizeof(*g->processor));
	g->carrier_page = fiber_page_table(g->max_carriers,
					   sizeof(*g->carrier_page));
	if (!g->info || !g->hint || !g->processor || !g->carrier_page)
		return -ENOMEM;
	for (i = 0; i < g->nr_processors; i++) {
		g->processor[i].index = i;
		g->processor[i].page = alloc();
		if (!g->processor[i].page)
			return -ENOMEM;
	}
	return 0;
}

/**
 * fiber_page_free - free all of it
 * @g: nobody maps it and no carrier is attached; may be half set up
 */
void fiber_page_free(struct fiber_group *g)
{
	u32 i;

	for (i = 0; g->processor && i < g->nr_processors; i++)
		free_page((unsigned long)g->processor[i].page);
	for (i = 0; g->carrier_page && i < g->max_carriers; i++)
		if (g->carrier_page[i])
			__free_page(g->carrier_page[i]);
	kvfree(g->processor);
	kvfree(g->carrier_page);
	free_page((unsigned long)g->info);
	free_page((unsigned long)g->hint);
	g->processor = NULL;
	g->carrier_page = NULL;
	g->info = NULL;
	g->hint = NULL;
}

/**
 * fiber_page_carrier - the page of a carrier, zeroed
 * @g: setup mutex held
 * @index: below max_carriers
 *
 * A page is reused by the next carrier with its number. NULL: no memory.
 */
struct fiber_carrier_page *fiber_page_carrier(struct fiber_group *g, u32 index)
{
	struct page *page = g->carrier_page[index];

	if (page) {
		memset(page_address(page), 0, PAGE_SIZE);
		return page_address(page);
	}
	page = fiber_may_fail(alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO), NULL);
	if (!page)
		return NULL;
	/* The page is zeroed. Pairs with the acquire in find_page(). */
	smp_store_release(&g->carrier_page[index], page);
	return page_address(page);
}

static struct page *find_page(struct fiber_group *g, unsigned long off)
{
	if (off == FIBER_OFF_INFO)
		return virt_to_page(g->info);
	if (off == FIBER_OFF_HINT)
		return virt_to_page(g->hint);
	if (off < FIBER_OFF_CARRIERS) {
		off -= FIBER_OFF_PROCESSORS;
		return off < g->nr_processors ?
			virt_to_page(g->processor[off].page) : NULL;
	}
	off -= FIBER_OFF_CARRIERS;
	if (off >= g->max_carriers)
		return NULL;
	/* Pairs with the release in fiber_page_carrier(). */
	return smp_load_acquire(&g->carrier_page[off]);
}

static vm_fault_t fault(struct vm_fault *vmf)
{
	struct fiber_group *g = vmf->vma->vm_private_data;
	struct page *page = find_page(g, vmf->pgoff);

	if (!page)
		return VM_FAULT_SIGBUS;	/* a carrier not yet attached */
	get_page(page);
	vmf->page = page;
	return 0;
}

static const struct vm_operations_struct fiber_vm_ops = {
	.fault = fault,
};

/* How many pages may be mapped from @off on; 0: none. */
static unsigned long room(struct fiber_group *g, unsigned long off)
{
	if (off <= FIBER_OFF_HINT)
		return 1;
	if (off >= FIBER_OFF_CARRIERS && off < FIBER_OFF_CARRIERS + g->max_carriers)
		return FIBER_OFF_CARRIERS + g->max_carriers - off;
	if (off >= FIBER_OFF_PROCESSORS && off < FIBER_OFF_PROCESSORS + g->nr_processors)
		return FIBER_OFF_PROCESSORS + g->nr_processors - off;
	return 0;
}

/**
 * fiber_page_mmap - map shared pages
 * @g: set up
 * @vma: of the group's process
 *
 * Returns 0; -EINVAL: not MAP_SHARED, executable, or beyond what exists; -EACCES:
 * the info page writable.
 */
int fiber_page_mmap(struct fiber_group *g, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & VM_EXEC))
		return -EINVAL;
	if (vma_pages(vma) > room(g, vma->vm_pgoff))
		return -EINVAL;
	if (vma->vm_pgoff == FIBER_OFF_INFO) {
		if (vma->vm_flags & VM_WRITE)
			return -EACCES;
		vm_flags_mod(vma, 0, VM_MAYWRITE);
	}
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP, VM_MAYEXEC);
	vma->vm_private_data = g;
	vma->vm_ops = &fiber_vm_ops;
	return 0;
}
