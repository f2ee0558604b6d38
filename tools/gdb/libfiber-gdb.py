# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Fibers in gdb, of live processes and of core files.

    info fibers               all of them, one a line; locked: fiber_thread_lock. CPU:
                              the processor it runs on; where: the innermost function
                              that is not the library's
    fiber ID                  look at it: bt, up, info locals ... are about it
    fiber                     which one is looked at
    fiber off                 back to the thread
    fiber apply all|ID... CMD do a gdb command for each

gdb loads this by itself with the library (make install); else: source FILE.

It knows the library by the object fiber_debug_v1 alone, whose layout lib/debug.h
describes, and needs none of its debugging information. To look at a fiber that does
not run changes nothing in the process: an unwinder says that the innermost frame of
the selected thread was called from where the fiber goes on. The thread's own frames
(number 0, and more if functions were inlined there) are not shown. A fiber on a
thread is that thread.
"""

import struct

import gdb
import gdb.unwinder

GROUPS = (
    ("slab", "size next bytes used stride at colours"),
    ("fiber", "size sp bp ip join fn why base id canary name name_size since"),
    ("runtime_at", "state started epoch features processors nproc carriers info "
                   "plain_spawned global_count quantum_ns on"),
    ("processor", "size pass_ ended idle_passes steals preemptions id_next id_step "
                  "index head tail page"),
    ("carrier", "next cur page tid index"),
    ("carrier_page", "in_fiber processor blocks handoffs returns"),
    ("info", "waiting spares idle carriers"),
)
LOCK = struct.Struct("<2Q")     # follows them; a library of before ends there
POOL_FIRST_AT = 456             # of pool.first, if the object is larger
POOL_POOLS_AT = 424             # of pool.pools
POOL_NAME_AT = 460              # of pool.name, name_size, flags, flag, of
HEAD = struct.Struct("<8s2I4Q4IQ")
NO_PROCESSOR = 0xffffffff
WHERE_MAX = 2000               # fibers; gdb unwinds a thousand a second or so


class Offsets:
    """Members of one struct, by name."""


def read(addr, size):
    return bytes(gdb.selected_inferior().read_memory(addr, size))


def word(addr):
    return struct.unpack("<Q", read(addr, 8))[0]


def half(addr):
    return struct.unpack("<I", read(addr, 4))[0]


def text(addr):
    return gdb.Value(addr).cast(
        gdb.lookup_type("char").pointer()).string(errors="replace")


class Root:
    """fiber_debug_v1 of the program."""

    def __init__(self):
        try:
            addr = int(gdb.parse_and_eval("(unsigned long)&fiber_debug_v1"))
            head = HEAD.unpack(read(addr, HEAD.size))
        except (gdb.error, gdb.MemoryError):
            raise gdb.GdbError("no fiber_debug_v1: this program does not use "
                               "libfiber, or has not loaded it yet") from None
        if head[0] != b"fiberdbg" or head[1] != 1:
            raise gdb.GdbError("fiber_debug_v1 is of another kind: use the "
                               "script that belongs to the library")
        (_, _, _, self.slabs, self.runtime, whys, self.start_ip, count,
         self.clock_shift, self.canary_size, self.colour_size,
         self.join_done) = head
        end = self.read_groups(addr + HEAD.size)
        self.lock_home, self.lock_mark = 0, 0
        if end - addr + LOCK.size <= head[2]:
            self.lock_home, self.lock_mark = LOCK.unpack(read(end, LOCK.size))
        self.pool_first = 0
        if head[2] >= POOL_FIRST_AT + 4:
            self.pool_first = half(addr + POOL_FIRST_AT)
        self.pool_flag = 0
        if head[2] >= POOL_NAME_AT + 20:
            (self.pool_name, self.pool_name_size, self.pool_flags,
             self.pool_flag, self.pool_of) = struct.unpack(
                 "<5I", read(addr + POOL_NAME_AT, 20))
            self.pools = half(addr + POOL_POOLS_AT)
        self.pool_names = {}
        if half(self.runtime + self.runtime_at.state) < self.runtime_at.on:
            raise gdb.GdbError("the fiber runtime does not run")
        self.why = [text(word(whys + 8 * i)) for i in range(count)]

    def read_groups(self, addr):
        for name, members in GROUPS:
            group = Offsets()
            for member in members.split():
                setattr(group, member, half(addr))
                addr += 4
            setattr(self, name, group)
        return addr

    def pool(self, raw):
        """Name of the pool that a fiber belongs to; "" is the default one."""
        if not self.pool_flag or not self.pool_flag & struct.unpack_from(
                "<H", raw, self.pool_flags)[0]:
            return ""
        i = raw[self.pool_of]
        if i not in self.pool_names:
            pool = word(self.runtime + self.pools + 8 * i)
            name = read(pool + self.pool_name, self.pool_name_size)
            self.pool_names[i] = name.split(b"\0")[0].decode(errors="replace")
        return self.pool_names[i]

    def carriers(self):
        """Address of the fiber that each carrier runs: thread's id, processor."""
        found = {}
        addr = word(self.runtime + self.runtime_at.carriers)
        while addr:
            cur = word(addr + self.carrier.cur)
            if cur:
                found[cur] = (half(addr + self.carrier.tid),
                              self.processor_of(addr))
            addr = word(addr + self.carrier.next)
        return found

    def processor_of(self, carrier):
        try:
            page = word(carrier + self.carrier.page)
            number = half(page + self.carrier_page.processor)
            if number != NO_PROCESSOR and self.pool_first:
                number += half(carrier + self.pool_first)
        except gdb.MemoryError:     # the module's pages are in no core file
            return ""
        return "" if number == NO_PROCESSOR else number

    def descriptors(self):
        slab = word(self.slabs)
        while slab:
            at = self.slab
            stride = word(slab + at.stride)
            if not stride:
                print("(part of the stacks is missing: gdb's generate-core-file "
                      "leaves out what lies behind guard pages; start the "
                      "program with FIBER_STACK_GUARD=mprotect)")
                return
            colours = half(slab + at.colours)
            first = word(slab + at.at)
            base = slab + at.size - word(slab + at.bytes)
            end = base + word(slab + at.used)
            for block in range(base, end, stride):
                colour = block // stride % colours * self.colour_size
                yield block + first - colour, first == 0
            slab = word(slab + at.next)


class Fiber:
    def __init__(self, root, addr, own, raw, carriers):
        def get(offset):
            return struct.unpack_from("<Q", raw, offset)[0]

        at = root.fiber
        self.id = get(at.id)
        self.alive = self.id != 0 and not get(at.join) & root.join_done
        if not self.alive:
            return
        self.library = self.id >> 63
        self.id &= (1 << 63) - 1
        self.sp, self.bp, self.ip = get(at.sp), get(at.bp), get(at.ip)
        self.entry = get(at.fn)
        name = raw[at.name:at.name + at.name_size]
        self.name = name.split(b"\0")[0].decode(errors="replace")
        self.pool = root.pool(raw)
        self.high = word(addr + at.size) if own else addr
        why = raw[at.why]
        self.tid, self.cpu = (0, "") if why else carriers.get(addr, (0, ""))
        self.home = self.locked_to(root, get(root.lock_home))
        if why:
            self.state = "parked (%s)" % (root.why[why] if why < len(root.why)
                                          else "?")
        elif self.tid:
            self.state = "on LWP %d" % self.tid
        else:
            self.state = "new" if self.ip == root.start_ip else "ready"
        if self.home:
            self.state += ", locked" + " to LWP %d" % self.home * (not self.tid)

    def locked_to(self, root, word_):
        """The thread that it is locked to (fiber_thread_lock); or 0."""
        if not word_ & root.lock_mark:
            return 0
        return half((word_ & ~root.lock_mark) + root.carrier.tid)

    def title(self):
        return "Fiber %d%s%s" % (self.id, " of the library" * self.library,
                                 ' "%s"' % self.name if self.name else "")


def fibers():
    root = Root()
    carriers = root.carriers()
    for addr, own in root.descriptors():
        try:
            raw = read(addr, root.fiber.size)
            fiber = Fiber(root, addr, own, raw, carriers)
        except gdb.MemoryError:     # a core file without that page
            continue
        if fiber.alive:
            yield fiber


def function(addr):
    """Name of the function at an address, without its offset."""
    block = gdb.execute("info symbol 0x%x" % addr, to_string=True)
    if block.startswith("No symbol"):
        return "0x%x" % addr
    return block.split(" in section")[0].split(" + ")[0].strip()


# ---- to look at one ----

class FrameId:
    def __init__(self, sp, pc):
        self.sp = sp
        self.pc = pc


def registers(frame):
    return (int(frame.read_register("rsp")), int(frame.read_register("rip")))


class FiberUnwinder(gdb.unwinder.Unwinder):
    """While a fiber is looked at: the thread's innermost frame leads to it."""

    def __init__(self):
        super().__init__("fiber")
        self.fiber = None
        self.thread = None
        self.here = None            # rsp, rip of the thread
        self.hidden = 0             # frames of the thread

    def active(self):
        thread = gdb.selected_thread()
        return (self.fiber is not None and thread is not None and
                thread.ptid == self.thread)

    def look(self, fiber):
        self.fiber = None
        gdb.invalidate_cached_frames()
        if fiber is None:
            return
        self.here = registers(gdb.newest_frame())
        self.thread = gdb.selected_thread().ptid
        self.fiber = fiber
        gdb.invalidate_cached_frames()

    def __call__(self, pending):
        if not self.active() or registers(pending) != self.here:
            return None
        rsp, rip = pending.read_register("rsp"), pending.read_register("rip")
        # Below the fiber's frames, or gdb takes them for a corrupt stack.
        info = pending.create_unwind_info(
            FrameId(gdb.Value(self.fiber.sp - 16).cast(rsp.type), rip))
        for name, value in (("rsp", self.fiber.sp), ("rbp", self.fiber.bp),
                            ("rip", self.fiber.ip)):
            kind = pending.read_register(name).type
            info.add_saved_register(name, gdb.Value(value).cast(kind))
        return info


unwinder = FiberUnwinder()
gdb.unwinder.register_unwinder(None, unwinder, replace=True)


class FiberFilter:
    """Frames of the thread itself are not shown."""

    name = "fiber"
    enabled = True
    priority = 1

    def filter(self, frames):
        if not unwinder.active():
            return frames
        return (f for f in frames
                if f.inferior_frame().level() >= unwinder.hidden)


gdb.frame_filters["fiber"] = FiberFilter()
gdb.events.cont.connect(lambda event: unwinder.look(None))
gdb.events.exited.connect(lambda event: unwinder.look(None))


def find(word_):
    try:
        wanted = int(word_, 0)
    except ValueError:
        raise gdb.GdbError("'%s' is no fiber's id: see 'info fibers'" %
                           word_) from None
    for fiber in fibers():
        if fiber.id == wanted and not fiber.library:
            return fiber
    raise gdb.GdbError("there is no fiber %d" % wanted)


def look_at(fiber):
    unwinder.look(None)
    if fiber.tid:
        for thread in gdb.selected_inferior().threads():
            if fiber.tid in thread.ptid[1:]:
                thread.switch()
                gdb.newest_frame().select()
                return
        raise gdb.GdbError("thread %d of the fiber is gone" % fiber.tid)
    if gdb.selected_thread() is None:
        raise gdb.GdbError("there is no thread")
    unwinder.look(fiber)
    frame = gdb.newest_frame()
    while frame is not None and registers(frame) == unwinder.here:
        frame = frame.older()
    if frame is None:
        unwinder.look(None)
        raise gdb.GdbError("its stack cannot be read")
    unwinder.hidden = frame.level()
    frame.select()


def innermost():
    """From the selected frame on, the first function that is not the library's."""
    frame = gdb.selected_frame()
    while frame is not None:
        name = frame.name()
        library = gdb.solib_name(frame.pc()) or ""
        if name and "/libfiber.so" not in library and \
                not name.startswith(("fb_", "fiber_")):
            return name
        frame = frame.older()
    return ""


def where(fiber):
    if fiber.state.startswith("new"):
        return ""
    try:
        look_at(fiber)
        return innermost()
    except gdb.error:               # its stack cannot be read
        return ""


class Place:
    """What is looked at: thread, fiber, frame; as it was afterwards."""

    def __enter__(self):
        self.thread = gdb.selected_thread()
        self.fiber = unwinder.fiber if unwinder.active() else None
        self.level = gdb.selected_frame().level() if self.thread else 0

    def __exit__(self, *_):
        unwinder.look(None)
        if self.thread is None or not self.thread.is_valid():
            return
        self.thread.switch()
        if self.fiber is not None:
            look_at(self.fiber)
        frame = gdb.newest_frame()
        while frame is not None and frame.level() < self.level:
            frame = frame.older()
        if frame is not None:
            frame.select()


class InfoFibers(gdb.Command):
    """info fibers - all fibers of the program"""

    LINE = "%s %-8s %-16s%s %-34s %9s %3s  %-20s %s"

    def __init__(self):
        super().__init__("info fibers", gdb.COMMAND_STATUS)

    @staticmethod
    def pool(name, pools):
        return " %-15s" % (name or "-") if pools else ""

    def invoke(self, argument, from_tty):
        n = 0
        looked_at = unwinder.fiber.id if unwinder.active() else None
        all_fibers = list(fibers())
        pools = any(f.pool for f in all_fibers)
        print(self.LINE % (" ", "Id", "Name", self.pool("Pool", pools), "State",
                           "Stack", "CPU", "Where", "Started with"))
        with Place():
            for f in all_fibers:
                n += 1
                print(self.LINE % (
                    "*" if looked_at == f.id else " ",
                    "library" if f.library else f.id, f.name,
                    self.pool(f.pool, pools), f.state,
                    "" if f.tid else f.high - f.sp, f.cpu,
                    where(f) if n <= WHERE_MAX else "", function(f.entry)))
        print("%d fibers" % n)


class FiberCommand(gdb.Command):
    """fiber ID - look at that fiber; fiber off - back to the thread"""

    def __init__(self):
        super().__init__("fiber", gdb.COMMAND_STACK, prefix=True)

    def invoke(self, argument, from_tty):
        if not argument:
            print("[%s]" % unwinder.fiber.title() if unwinder.active()
                  else "[no fiber is looked at]")
        elif argument == "off":
            unwinder.look(None)
            gdb.newest_frame().select()
        else:
            fiber = find(argument)
            look_at(fiber)
            print("[%s, %s]" % (fiber.title(), fiber.state))
            gdb.execute("frame")


class FiberApply(gdb.Command):
    """fiber apply all COMMAND, or: fiber apply ID... COMMAND"""

    def __init__(self):
        super().__init__("fiber apply", gdb.COMMAND_STACK)

    def wanted(self, words):
        if words[:1] == ["all"]:
            return list(fibers()), words[1:]
        n = 0
        while n < len(words) and words[n].isdigit():
            n += 1
        return [find(w) for w in words[:n]], words[n:]

    def invoke(self, argument, from_tty):
        some, command = self.wanted(argument.split())
        if not command:
            raise gdb.GdbError("fiber apply all|ID... COMMAND")
        thread = gdb.selected_thread()
        for fiber in some:
            print("\n%s (%s):" % (fiber.title(), fiber.state))
            try:
                look_at(fiber)
                gdb.execute(" ".join(command))
            except gdb.error as error:
                print(error)
        unwinder.look(None)
        if thread is not None and thread.is_valid():
            thread.switch()


InfoFibers()
FiberCommand()
FiberApply()
