// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT

// The rows for Go: bench.h says what they are. Channels of results would cost
// more than a WaitGroup and a place in the parent.
package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	readers        = 100
	readFD         = 100
	enteredFD      = 99
	second         = 1000000000
	clockMonotonic = 1 // CLOCK_MONOTONIC
	clockProcess   = 2 // CLOCK_PROCESS_CPUTIME_ID
)

var clock uintptr = clockMonotonic

func now() int64 {
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock,
		uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

func timed(run func(int), n int) int64 {
	t := now()
	run(n)
	return now() - t
}

func rowLoop(row string, run func(int)) {
	n := 64
	ns := timed(run, n)
	for ns < second/25 {
		n *= 2
		ns = timed(run, n)
	}
	n = int(float64(n)*0.4*second/float64(ns)) + 1
	fmt.Printf("%s %.3f\n", row, float64(timed(run, n))/float64(n))
}

func spawn(n int) {
	var wg sync.WaitGroup
	for i := 0; i < n; i++ {
		wg.Add(1)
		go wg.Done()
		wg.Wait()
	}
}

type yielding struct {
	fibers, rounds int
	started, ended int64
	begin, end     int64
}

func (y *yielding) fiber(wg *sync.WaitGroup) {
	atomic.AddInt64(&y.started, 1)
	for atomic.LoadInt64(&y.started) < int64(y.fibers) {
		runtime.Gosched()
	}
	if y.begin == 0 {
		y.begin = now()
	}
	for i := 0; i < y.rounds; i++ {
		runtime.Gosched()
	}
	if atomic.AddInt64(&y.ended, 1) == int64(y.fibers) {
		y.end = now()
	}
	wg.Done()
}

func (y *yielding) run() int64 {
	var wg sync.WaitGroup
	wg.Add(y.fibers)
	for i := 0; i < y.fibers; i++ {
		go y.fiber(&wg)
	}
	wg.Wait()
	return y.end - y.begin
}

func rowYield(row string) {
	fibers := 2
	if len(row) > 6 {
		fibers, _ = strconv.Atoi(row[6:])
	}
	warm := yielding{fibers: fibers, rounds: 300000/fibers + 1}
	ns := warm.run()
	y := yielding{fibers: fibers}
	y.rounds = int(float64(warm.rounds)*0.4*second/float64(ns+1)) + 1
	ns = y.run()
	fmt.Printf("%s %.3f\n", row,
		float64(ns)/float64(y.rounds)/float64(fibers))
}

func fib(n int, out *int, up *sync.WaitGroup) {
	if n < 2 {
		*out = n
	} else {
		var down sync.WaitGroup
		var a, b int
		down.Add(2)
		go fib(n-1, &a, &down)
		go fib(n-2, &b, &down)
		down.Wait()
		*out = a + b
	}
	up.Done()
}

func runFib(n int) (r int) {
	var wg sync.WaitGroup
	wg.Add(1)
	fib(n, &r, &wg)
	return
}

func rowFib(row string) {
	const calls = 2692537
	runFib(20)
	t := now()
	r := runFib(30)
	t = now() - t
	if r != 832040 {
		panic(r)
	}
	fmt.Printf("%s %.3f\n", row, float64(t)/calls)
}

func skynet(first, size int, out *int, up *sync.WaitGroup) {
	if size == 1 {
		*out = first
	} else {
		var down sync.WaitGroup
		var part [10]int
		down.Add(10)
		for i := range part {
			go skynet(first+i*size/10, size/10, &part[i], &down)
		}
		down.Wait()
		for _, p := range part {
			*out += p
		}
	}
	up.Done()
}

func runSkynet(size int) (r int) {
	var wg sync.WaitGroup
	wg.Add(1)
	skynet(0, size, &r, &wg)
	return
}

func rowSkynet(row string) {
	runSkynet(10000)
	t := now()
	r := runSkynet(1000000)
	t = now() - t
	if r != 499999500000 {
		panic(r)
	}
	fmt.Printf("%s %.3f\n", row, float64(t)/1e6)
}

func flow(n, slots int) {
	c := make(chan int, slots)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		for i := 0; i < n; i++ {
			if <-c != i {
				panic(i)
			}
		}
		wg.Done()
	}()
	for i := 0; i < n; i++ {
		c <- i
	}
	wg.Wait()
}

func hop(n int)      { flow(n, 0) }
func buffered(n int) { flow(n, 128) }

const lockers = 8

func lock(n int, yields bool) {
	var m sync.Mutex
	var wg sync.WaitGroup
	var started int64
	count := 0
	each := n/lockers + 1
	wg.Add(lockers)
	for i := 0; i < lockers; i++ {
		go func() {
			atomic.AddInt64(&started, 1)
			for atomic.LoadInt64(&started) < lockers {
				runtime.Gosched()
			}
			for i := 0; i < each; i++ {
				m.Lock()
				count++
				if yields {
					runtime.Gosched()
				}
				m.Unlock()
			}
			wg.Done()
		}()
	}
	wg.Wait()
	if count != each*lockers {
		panic(count)
	}
}

func mutex(n int)      { lock(n, false) }
func mutexYield(n int) { lock(n, true) }

func rowBlocked() {
	var entered, ended int64
	var wake [readers]int64
	var wg sync.WaitGroup
	spin := func() {
		for atomic.LoadInt64(&ended) < readers {
		}
		wg.Done()
	}
	began := now()
	read := func(i int) {
		var b [8]byte
		if atomic.AddInt64(&entered, 1) == readers {
			binary.LittleEndian.PutUint64(b[:], uint64(now()-began))
			syscall.Write(enteredFD, b[:])
		}
		if n, _ := syscall.Read(readFD+i, b[:]); n != 8 {
			panic("read")
		}
		wake[i] = now() - int64(binary.LittleEndian.Uint64(b[:]))
		atomic.AddInt64(&ended, 1)
		wg.Done()
	}
	wg.Add(2 + readers)
	go spin()
	go spin()
	for i := 0; i < readers; i++ {
		go read(i)
	}
	wg.Wait()
	sort.Slice(wake[:], func(i, j int) bool { return wake[i] < wake[j] })
	fmt.Printf("blocked-wake %.3f\nblocked-wake-p99 %.3f\n",
		float64(wake[readers/2])/float64(time.Microsecond),
		float64(wake[readers*99/100])/float64(time.Microsecond))
}

// bench_sleeper says what is measured.
func rowTimer() {
	const sleepers = 10000
	const sleepFor = 3 * second
	const most = 1 << 20
	var asleep, sleeps, end, cpuEnd int64
	late := make([]int64, most)
	var cpuBegin int64
	var wg sync.WaitGroup
	base := time.Now()
	sleeper := func(i int) {
		seed := uint64(i)*2654435761 + 1
		at, mine := int64(time.Since(base)), int64(0)
		if atomic.AddInt64(&asleep, 1) == sleepers {
			cpuBegin = now()
			atomic.StoreInt64(&end, at+sleepFor)
		}
		for mine == 0 || at < mine {
			seed = seed*6364136223846793005 + 1442695040888963407
			d := 1000000 + int64(seed>>33)%199000000
			t := at + d
			time.Sleep(time.Duration(d))
			at = int64(time.Since(base))
			if mine != 0 && at < mine {
				n := atomic.AddInt64(&sleeps, 1) - 1
				if n < most {
					late[n] = at - t
				}
			}
			mine = atomic.LoadInt64(&end)
		}
		if cpuEnd == 0 {
			cpuEnd = now()
		}
		wg.Done()
	}
	wg.Add(sleepers)
	for i := 0; i < sleepers; i++ {
		go sleeper(i)
	}
	wg.Wait()
	n := sleeps
	if n > most {
		n = most
	}
	late = late[:n]
	sort.Slice(late, func(i, j int) bool { return late[i] < late[j] })
	fmt.Printf("timer-cpu %.3f\ntimer-p50 %.3f\ntimer-p99 %.3f\n",
		float64(cpuEnd-cpuBegin)/float64(sleeps),
		float64(late[n/2])/1e3, float64(late[n*99/100])/1e3)
}

// Resident bytes, and what the kernel needs to know where.
func memory() int64 {
	text, _ := os.ReadFile("/proc/self/status")
	kib := int64(0)
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) > 1 && (f[0] == "VmRSS:" || f[0] == "VmPTE:") {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			kib += n
		}
	}
	return kib * 1024
}

func rowParked(row string) {
	const n = 1000000
	var waiting, ended int64
	ch := make(chan byte)
	before, t := memory(), now()
	for i := 0; i < n; i++ {
		go func() {
			atomic.AddInt64(&waiting, 1)
			<-ch
			atomic.AddInt64(&ended, 1)
		}()
	}
	for atomic.LoadInt64(&waiting) < n {
		runtime.Gosched()
	}
	create := now() - t
	bytes := (memory() - before) / n
	t = now()
	close(ch)
	for atomic.LoadInt64(&ended) < n {
		runtime.Gosched()
	}
	fmt.Printf("%s-create %.3f\n%s-wake %.3f\n%s-bytes %d\n", row,
		float64(create)/1e6, row, float64(now()-t)/1e6, row, bytes)
}

func main() {
	row := ""
	if len(os.Args) > 1 {
		row = os.Args[1]
	}
	if row == "blocked" || strings.HasSuffix(row, "2") {
		runtime.GOMAXPROCS(2)
	} else {
		runtime.GOMAXPROCS(1)
		clock = clockProcess
	}
	switch {
	case row == "spawn":
		rowLoop(row, spawn)
	case strings.HasPrefix(row, "chan"):
		rowLoop(row, hop)
	case strings.HasPrefix(row, "buf"):
		rowLoop(row, buffered)
	case strings.HasPrefix(row, "mutex-yield"):
		rowLoop(row, mutexYield)
	case strings.HasPrefix(row, "mutex"):
		rowLoop(row, mutex)
	case strings.HasPrefix(row, "yield"):
		rowYield(row)
	case strings.HasPrefix(row, "fib"):
		rowFib(row)
	case strings.HasPrefix(row, "skynet"):
		rowSkynet(row)
	case strings.HasPrefix(row, "parked"):
		rowParked(row)
	case row == "blocked":
		rowBlocked()
	case row == "timer":
		rowTimer()
	case row == "echo":
		echo()
	default:
		os.Exit(77)
	}
}
