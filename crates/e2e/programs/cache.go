// A server's cache of byte slices, as the tests attach to: most of it is cold and free of pointers, and beside it garbage is made and collected all day.
//
//	cache MIB        goes on until its standard input ends, then says "fine N" and ends with status 7
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const size = 16 << 10

func fill(slice []byte, key, version uint64) {
	x := key<<32 ^ version ^ 0x9E3779B97F4A7C15
	for at := range slice {
		if at%64 == 0 {
			x = x*6364136223846793005 + 1442695040888963407
		}
		slice[at] = byte(x >> 56)
	}
}

func look(slice []byte, key, version uint64) {
	want := make([]byte, size)
	fill(want, key, version)
	if string(want) != string(slice) {
		fmt.Println("WRONG: key", key, "version", version)
		os.Exit(1)
	}
}

type node struct {
	left, right *node
	text        []byte
}

func garbage(depth int) *node {
	if depth == 0 {
		return &node{text: make([]byte, 40)}
	}
	return &node{garbage(depth - 1), garbage(depth - 1), nil}
}

func main() {
	mib, _ := strconv.Atoi(os.Args[1])
	count := uint64(mib) << 20 / size
	cache := make([][]byte, count)
	version := make([]uint64, count)
	for key := range cache {
		cache[key] = make([]byte, size)
		fill(cache[key], uint64(key), 0)
	}
	var over atomic.Bool
	var rounds, collected atomic.Uint64
	var all sync.WaitGroup
	var lock sync.Mutex
	for n := uint64(0); n < 2; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for seed := n; !over.Load(); seed = seed*6364136223846793005 + 1442695040888963407 {
				// A twentieth of it is in use, and replaced now and then.
				key := seed >> 33 % (count / 20)
				lock.Lock()
				look(cache[key], key, version[key])
				if seed>>40%8 == 0 {
					version[key]++
					cache[key] = make([]byte, size)
					fill(cache[key], key, version[key])
				}
				lock.Unlock()
				if garbage(10) != nil {
					collected.Add(1)
				}
				rounds.Add(1)
			}
		}()
	}
	all.Add(1)
	go func() {
		defer all.Done()
		for !over.Load() {
			// What the runtime gives back to the kernel, and what it starts.
			debug.FreeOSMemory()
			if out, err := exec.Command("/bin/echo", "child").Output(); err != nil || string(out) != "child\n" {
				fmt.Println("WRONG: a program that was started", err, string(out))
				os.Exit(1)
			}
			time.Sleep(200 * time.Millisecond)
		}
	}()
	fmt.Println("ready")
	began := time.Now()
	bufio.NewReader(os.Stdin).ReadString('\n')
	over.Store(true)
	all.Wait()
	took := time.Since(began)
	for key := range cache {
		look(cache[key], uint64(key), version[key])
	}
	fmt.Printf("fine %d, %.1f a second\n", rounds.Load(), float64(rounds.Load())/took.Seconds())
	os.Exit(7)
}
