# SPDX-License-Identifier: GPL-2.0-only
#
# "make help" lists the targets. Everything made goes to build/.

# dkms.conf must have it as it is; Kbuild takes it from there as well
VERSION := $(shell sed -n 's/^PACKAGE_VERSION="\(.*\)"$$/\1/p' dkms.conf)
SOVERSION := 0
ARCH := x86_64

# SAN=address, thread or undefined: everything with that sanitizer, apart
SAN ?=
BUILD := build$(if $(SAN),/san/$(SAN)-$(notdir $(CC)))
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
BINDIR ?= $(PREFIX)/bin
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
UDEVDIR ?= $(PREFIX)/lib/udev/rules.d
# where gdb looks for scripts by itself, unless the library goes elsewhere too
GDBDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/usr,$(PREFIX))/share/gdb/auto-load
INSTALL ?= install
OBJCOPY ?= objcopy
READELF ?= readelf

RELEASE := $(shell uname -r)
KDIR ?= /lib/modules/$(RELEASE)/build
KERNELS ?= 6.1 6.12 7.3
DEPS ?= yes
export DEPS KERNELS

CFLAGS ?= -O2 -g
SAN_FLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
SAN_DEFINE := $(if $(filter address,$(SAN)),-DFB_ASAN) \
	      $(if $(filter thread,$(SAN)),-DFB_TSAN -Wno-tsan \
	      -Wno-unknown-warning-option)
WARN := -Wall -Wextra -Wno-unused-parameter
COMMON := -std=gnu11 -D_GNU_SOURCE $(WARN) -MMD -MP -Iuapi -Ilib/include
LIB_FLAGS := $(COMMON) -fPIC -fvisibility=hidden -ftls-model=initial-exec \
	     -fno-plt -fno-semantic-interposition -Ilib -Ilib/arch/$(ARCH)
# noclone and noipa are gcc's: clang makes no copies of what is not inlined
TEST_FLAGS := $(COMMON) -Iselftests -Wno-missing-field-initializers \
	      -Wno-unknown-attributes \
	      -DFIBER_VERSION='"$(VERSION)"'

ifdef SAN
override CFLAGS += $(SAN_FLAGS) $(SAN_DEFINE)
endif

# systemtap-sdt-dev: probes for perf, bpftrace, gdb
SDT := $(wildcard /usr/include/sys/sdt.h /usr/include/*/sys/sdt.h)
LIB_FLAGS += $(if $(SDT),-DFB_SDT)

# liburing-dev
URING := $(if $(wildcard /usr/include/liburing.h),-luring)
LIB_FLAGS += $(if $(URING),-DFB_URING)

LIB := $(BUILD)/lib
SO := $(LIB)/libfiber.so.$(SOVERSION)
LINK_LIB = -L$(LIB) -lfiber -lpthread

LIB_SRC := $(wildcard lib/*.c lib/arch/$(ARCH)/*.c lib/arch/$(ARCH)/*.S)
LIB_OBJ := $(patsubst %,$(BUILD)/obj/%.o,$(basename $(LIB_SRC)))
LIB_AR_OBJ := $(LIB_OBJ:$(BUILD)/obj/%.o=$(BUILD)/obj/static/%.o)

SAMPLE_DIRS := $(patsubst %/,%,$(sort $(dir $(wildcard samples/*/*.c))))
SAMPLES := $(patsubst samples/%,$(BUILD)/samples/%,$(SAMPLE_DIRS))

BENCH := $(if $(wildcard tools/bench/*.c),$(BUILD)/tools/bench)
# libdw-dev
FIBERCTL := $(if $(SAN),,$(if $(wildcard /usr/include/elfutils/libdwfl.h),$(BUILD)/tools/fiberctl))

RAW := selftests/module/raw.c selftests/module/mix.c selftests/module/tracer.c \
       selftests/module/raw.S
MODULE_TESTS := $(patsubst %.c,$(BUILD)/%,$(filter-out $(RAW),$(wildcard selftests/module/*.c)))
LIB_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard selftests/lib/*.c)) \
	     $(patsubst %.cc,$(BUILD)/%,$(wildcard selftests/lib/*.cc))
# Unmodified libraries in fibers: those of them that pkg-config finds
LIBRARIES := getaddrinfo $(shell for p in fuse3 libcurl libpq sqlite3; do \
		pkg-config --exists $$p 2>/dev/null && echo $$p; done)
LIBRARY_TESTS := $(LIBRARIES:%=$(BUILD)/selftests/libraries/%)
# The other end of servers, for the scripts that test them.
PEER := $(BUILD)/selftests/net/peer
# The module's are static and make raw system calls: not for sanitizers.
BESIDE := $(BUILD)/selftests/linux/beside $(BUILD)/selftests/fuzz/fuzz
TESTS := $(if $(SAN),,$(MODULE_TESTS) $(BESIDE) $(LIBRARY_TESTS) $(PEER)) $(LIB_TESTS)

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all lib samples tools tests modules modules_install install uninstall insmod \
	rmmod check check-native check-vm check-cost check-imports check-dkms \
	check-model check-san check-docs check-stress check-flavours check-matrix \
	check-kselftest check-fuzz check-debug check-static demo bench \
	deps clean help FORCE

all: lib samples tools

help:
	@echo 'make                  library, samples, tools'
	@echo 'make demo             the sample server in a VM, with pictures (BACKEND=user: natively)'
	@echo 'make check            all tests; KERNELS="6.1 6.12 7.3" picks the kernels'
	@echo 'make check-native     library tests on this machine, user backend'
	@echo 'make check-vm         tests in VMs'
	@echo 'make check-cost       exact instruction counts in VMs'
	@echo 'make check-san        library tests under sanitizers and valgrind'
	@echo 'make SAN=address      (thread, undefined) all that into build/san/'
	@echo 'make check-model      the protocol in Promela, and its mutations'
	@echo 'make check-stress     everything at once: SECONDS=180 KERNEL=K'
	@echo 'make check-flavours   module tests on -rt and -cloud kernels'
	@echo 'make check-matrix     all kernels and preempt modes (KERNELS, PREEMPT)'
	@echo 'make check-docs       tests that Documentation names, barrier pairs'
	@echo 'make check-kselftest  Linux'\''s own selftests beside a busy group'
	@echo 'make check-fuzz       random calls, hostile writes; FIBER_FUZZ_SECONDS=30'
	@echo 'make check-debug      all under KASAN, lockdep, kmemleak, UBSAN and KCSAN'
	@echo 'make check-imports    kernel symbols that the module needs'
	@echo 'make check-static     sparse and checkpatch.pl on the module'
	@echo 'make check-dkms       DKMS cycle in temporary folders'
	@echo 'make modules          fiber.ko for KDIR=$(KDIR)'
	@echo 'make modules KERNEL=K fiber.ko for a fetched kernel (6.1, 6.12-rt, ...)'
	@echo '                      FAULT=1: what can fail does on demand, for tests'
	@echo 'make modules_install  into /lib/modules; also: insmod, rmmod'
	@echo 'make install          library, headers, man pages (DESTDIR, PREFIX)'
	@echo 'make bench            ours beside peers: table and picture (TSV=, SVG=, R=5)'
	@echo 'make clean            remove build/'
	@echo 'DEPS=no               never install Debian packages'

# --- library ---------------------------------------------------------------

lib: $(SO) $(LIB)/libfiber.so $(LIB)/libfiber.a $(LIB)/fiber.pc

# Other flags or another compiler: compile again.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CFLAGS) $(CPPFLAGS) $(LDFLAGS) $(LIB_FLAGS)' | \
		cmp -s - $@ || \
	 echo '$(CC) $(CFLAGS) $(CPPFLAGS) $(LDFLAGS) $(LIB_FLAGS)' >$@

$(BUILD)/obj/lib/%.o: lib/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(LIB_FLAGS) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# It talks to the sanitizer, which must not watch it: see there.
$(BUILD)/obj/lib/san.o: override CFLAGS := $(filter-out -fsanitize=%,$(CFLAGS))

$(BUILD)/obj/lib/%.o: lib/%.S $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(LIB_FLAGS) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# Exceptions may pass through it.
$(BUILD)/obj/lib/once.o: LIB_FLAGS += -fexceptions

$(SO): $(LIB_OBJ) lib/libfiber.map
	@mkdir -p $(@D)
	$(CC) -shared $(CFLAGS) $(LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,nodelete \
		$(if $(SAN),,-Wl,-z,defs) \
		-Wl,--version-script=lib/libfiber.map -o $@ $(LIB_OBJ) $(URING) -lpthread

$(LIB)/libfiber.so: $(SO)
	ln -sf $(<F) $@

# In one section of its own: preempt.c leaves that out of a program's text.
$(BUILD)/obj/static/%.o: $(BUILD)/obj/%.o
	@mkdir -p $(@D)
	$(OBJCOPY) $$($(READELF) -SW $< | \
		sed -n 's/.* \(\.text[^ ]*\) .*/--rename-section \1=fb_text/p') \
		$< $@

$(LIB)/libfiber.a: $(LIB_AR_OBJ)
	@mkdir -p $(@D)
	rm -f $@
	$(AR) rcs $@ $(LIB_AR_OBJ)

# Made anew each time: PREFIX may be another.
$(LIB)/fiber.pc: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' \
		'includedir=$(INCLUDEDIR)' '' 'Name: fiber' \
		'Description: Plain blocking code in very many fibers' \
		'Version: $(VERSION)' 'Libs: -L$${libdir} -lfiber' \
		'Libs.private: $(URING) -lpthread' \
		'Cflags: -I$${includedir} -fstack-clash-protection' >$@

# --- samples, tools, tests ---------------------------------------------------

samples: $(SAMPLES)
tools: $(BENCH) $(FIBERCTL)
tests: $(TESTS)

# program: all C files of one folder, linked to the library
define program
$(1): $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(2)/*.c)) $(LIB)/libfiber.so
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$(LDFLAGS) -Wl,-rpath,'$$$$ORIGIN/../lib' -o $$@ \
		$$(filter %.o,$$^) $$(LINK_LIB) -lm
endef
$(foreach d,$(SAMPLE_DIRS),$(eval $(call program,$(BUILD)/$(d),$(d))))
$(if $(BENCH),$(eval $(call program,$(BENCH),tools/bench)))

$(BUILD)/tools/fiberctl: $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tools/fiberctl/*.c)) \
			$(BUILD)/obj/lib/trace_json.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -ldw -lelf

$(BUILD)/obj/tools/fiberctl/%.o: CPPFLAGS += -DFIBER_VERSION='"$(VERSION)"'

$(BUILD)/obj/samples/%.o: samples/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/obj/tools/%.o: tools/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(COMMON) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# what all programs of selftests/module share
RAW_OBJ := $(RAW:%=$(BUILD)/obj/%.o)

$(BUILD)/obj/selftests/module/%.o: selftests/module/% $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/selftests/module/%: selftests/module/%.c $(BUILD)/flags $(RAW_OBJ)
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) $(CPPFLAGS) $(CFLAGS) -static -o $@ $< \
		$(RAW_OBJ) $(LDFLAGS) -lpthread -lm

# a part of the library by itself
$(BUILD)/selftests/lib/wheel: $(BUILD)/obj/lib/wheel.o

# A 32-bit program inside a 64-bit one: no 32-bit C library needed
CODE32 := $(BUILD)/obj/selftests/code32

$(CODE32): selftests/module/code32/code32.c selftests/module/code32/code32.h
	@mkdir -p $(@D)
	$(CC) -m32 -std=gnu11 -O2 $(WARN) -nostdlib -static -ffreestanding \
		-fno-pic -no-pie -fno-stack-protector -Iuapi \
		-idirafter /usr/include/x86_64-linux-gnu -o $@ $<

$(BUILD)/selftests/module/hazard_code: $(CODE32)
$(BUILD)/selftests/module/hazard_code: CPPFLAGS += -Wa,-I$(BUILD)/obj/selftests

$(BUILD)/selftests/lib/%: selftests/lib/%.c $(BUILD)/flags $(LIB)/libfiber.so
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) $(CPPFLAGS) $(CFLAGS) -o $@ $< $(filter %.o,$^) $(LDFLAGS) \
		-Wl,-rpath,'$$ORIGIN/../../lib' $(LINK_LIB) -lm

# The C library's own is no package.
of = $(if $(filter-out getaddrinfo,$(2)),$$(pkg-config $(1) $(2)))

$(BUILD)/selftests/libraries/%: selftests/libraries/%.c $(BUILD)/flags $(LIB)/libfiber.so
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) $(CPPFLAGS) $(CFLAGS) $(call of,--cflags,$*) \
		-o $@ $< $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/../../lib' \
		$(LINK_LIB) $(call of,--libs,$*)

FUZZ := $(wildcard selftests/fuzz/*.c)

$(BUILD)/obj/selftests/fuzz/%.o: selftests/fuzz/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/selftests/fuzz/fuzz: $(FUZZ:%.c=$(BUILD)/obj/%.o) $(RAW_OBJ)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -static -o $@ $^ $(LDFLAGS) -lpthread

$(BUILD)/selftests/linux/%: selftests/linux/%.c $(BUILD)/flags $(LIB)/libfiber.so
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) $(CPPFLAGS) $(CFLAGS) -o $@ $< $(LDFLAGS) \
		-Wl,-rpath,'$$ORIGIN/../../lib' $(LINK_LIB)

$(PEER): selftests/net/peer.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) $(CPPFLAGS) $(CFLAGS) -o $@ $< $(LDFLAGS) -lpthread

# 2 KiB of stack are not enough for the dynamic linker's late binding.
$(BUILD)/selftests/lib/stack $(BUILD)/selftests/lib/walk: override LDFLAGS += -Wl,-z,now

$(BUILD)/selftests/lib/%: selftests/lib/%.cc $(BUILD)/flags $(LIB)/libfiber.so
	@mkdir -p $(@D)
	$(CXX) $(patsubst -std=%,-std=gnu++17,$(TEST_FLAGS)) $(CPPFLAGS) \
		$(CFLAGS) -o $@ $< $(LDFLAGS) \
		-Wl,-rpath,'$$ORIGIN/../../lib' $(LINK_LIB)

-include $(shell find $(BUILD)/obj $(BUILD)/selftests -name '*.d' 2>/dev/null)

# --- kernel module -----------------------------------------------------------

MODULE_DIR := $(BUILD)/modules/$(or $(KERNEL),$(RELEASE))

modules:
ifdef KERNEL
	@selftests/vm/module.sh $(if $(FAULT),-fault) $(KERNEL)
else
	@selftests/vm/module.sh -k $(KDIR) $(RELEASE)
endif

modules_install: modules
	$(MAKE) -C $(KDIR) M=$(abspath $(MODULE_DIR)) \
		INSTALL_MOD_PATH=$(DESTDIR) modules_install

insmod: modules
	insmod $(MODULE_DIR)/fiber.ko

rmmod:
	rmmod fiber

# --- installing --------------------------------------------------------------

MAN := $(wildcard man/*.[1-9])

install: lib $(FIBERCTL)
	$(INSTALL) -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(UDEVDIR) \
		$(DESTDIR)$(INCLUDEDIR)/linux
	$(INSTALL) -m 644 lib/include/fiber.h $(DESTDIR)$(INCLUDEDIR)/
	$(INSTALL) -d $(DESTDIR)$(INCLUDEDIR)/fiber
	$(INSTALL) -m 644 lib/include/fiber/*.h $(DESTDIR)$(INCLUDEDIR)/fiber/
	$(INSTALL) -m 644 uapi/linux/fiber.h $(DESTDIR)$(INCLUDEDIR)/linux/
	$(INSTALL) -m 755 $(SO) $(DESTDIR)$(LIBDIR)/
	ln -sf $(notdir $(SO)) $(DESTDIR)$(LIBDIR)/libfiber.so
	$(INSTALL) -m 644 $(LIB)/libfiber.a $(DESTDIR)$(LIBDIR)/
	$(INSTALL) -m 644 $(LIB)/fiber.pc $(DESTDIR)$(LIBDIR)/pkgconfig/
	$(INSTALL) -m 644 tools/60-fiber.rules $(DESTDIR)$(UDEVDIR)/
	$(INSTALL) -D -m 644 tools/gdb/libfiber-gdb.py \
		$(DESTDIR)$(GDBDIR)$(LIBDIR)/$(notdir $(SO))-gdb.py
	$(foreach m,$(MAN),$(INSTALL) -D -m 644 $(m) \
		$(DESTDIR)$(MANDIR)/man$(subst .,,$(suffix $(m)))/$(notdir $(m));)
	$(if $(FIBERCTL),$(INSTALL) -D -m 755 $(FIBERCTL) $(DESTDIR)$(BINDIR)/fiberctl)
	$(INSTALL) -D -m 755 tools/timeline/fiber-timeline \
		$(DESTDIR)$(BINDIR)/fiber-timeline
	@tools/man-links.sh $(DESTDIR)$(MANDIR)/man3 man/*.3
	$(if $(DESTDIR),,-ldconfig)

# What install would put there, and nothing else.
uninstall: lib $(FIBERCTL)
	@d=$$(mktemp -d) && \
		$(MAKE) --no-print-directory -s install DESTDIR="$$d" && \
		(cd "$$d" && find . ! -type d -printf '%P\n') | \
		while read -r f; do rm -fv "$(DESTDIR)/$$f"; done; \
		rm -rf "$$d"
	@rmdir $(DESTDIR)$(INCLUDEDIR)/fiber 2>/dev/null || :
	$(if $(DESTDIR),,-ldconfig)

# --- tests -------------------------------------------------------------------

deps:
	@tools/deps.sh build vm dkms

check:
	@selftests/check.sh native vm stress cost flavours imports dkms docs model \
		static

check-native check-vm check-cost check-imports check-dkms check-docs check-san \
check-model check-flavours check-kselftest check-fuzz check-debug check-static:
	@selftests/check.sh $(@:check-%=%)

# KERNEL=K and SECONDS=N; all kernels, 3 minutes each
check-stress:
	@KERNELS="$(or $(KERNEL),$(KERNELS))" FIBER_STRESS_SECONDS=$(SECONDS) \
		selftests/check.sh stress

# KERNELS, PREEMPT, TESTS, TIME: see selftests/matrix.sh
check-matrix: KERNELS := $(if $(filter-out file default,$(origin KERNELS)),$(KERNELS))
check-matrix:
	@selftests/check.sh matrix

demo:
	@tools/deps.sh build demo $(if $(filter user,$(BACKEND)),,vm)
	@$(MAKE) --no-print-directory all
	@selftests/vm/demo.sh $(BACKEND)

bench:
	@tools/deps.sh build bench
	@$(MAKE) --no-print-directory all
	@TSV=$(TSV) SVG=$(SVG) R=$(R) tools/bench/run.sh

clean:
	rm -rf $(BUILD)
