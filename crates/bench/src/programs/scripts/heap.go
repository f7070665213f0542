// A map of records that are functions of their numbers; their notes lie in memory of C's. A request is a line of input,
// an answer a line of JSON.
package main

// #include <stdlib.h>
// #include <string.h>
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

const (
	each     = 800 // bytes that a record takes, about
	hotOneIn = 20  // records for each that stays in use
	burst    = 100 * time.Millisecond
	period   = time.Second
	most     = 16384 // units whose times go into a percentile
)

var words = strings.Fields("the order was left with a neighbour because nobody opened please call before delivery and ask for " +
	"size exchange wrong colour agreed refund customer parcel")
var names = strings.Fields("Anna Boris Chiara David Elif Farid Greta Hugo Ines Jonas Keiko Luis Mira Nils Olga Pavel")

// What is made of a number; `notes` is kept apart, by C.
type record struct {
	id                int
	name, mail, token string
	balance           float64
	orders            [8]int
}

type entry struct {
	record *record
	notes  *C.char
}

// Random numbers, from the record's number alone.
func numbers(number int) func() uint64 {
	state := uint64(number)
	return func() uint64 {
		state = state*6364136223846793005 + 1442695040888963407
		return state >> 11
	}
}

func make_(number int) (record, string) {
	next := numbers(number)
	name := names[next()%16]
	made := record{id: number, name: name, mail: fmt.Sprintf("%s.%d@example.org", strings.ToLower(name), next()%1000)}
	made.token = fmt.Sprintf("%016x%016x", next(), next())
	made.balance = float64(next()%1000000) / 100
	for i := range made.orders {
		made.orders[i] = int(next() % 100000)
	}
	prose := make([]string, 60)
	for i := range prose {
		prose[i] = words[next()%uint64(len(words))]
	}
	return made, strings.Join(prose, " ")
}

type heap struct {
	count   int
	inUse   int // records that stay in use
	run     int // so many of them were made one after another
	entries map[int]entry
	total   int
}

func load(bytes, run int) *heap {
	heap := &heap{count: bytes / each, entries: map[int]entry{}}
	if heap.count < hotOneIn {
		heap.count = hotOneIn
	}
	heap.run = max(1, min(run, heap.count/hotOneIn))
	heap.inUse = heap.count / (hotOneIn * heap.run) * heap.run
	for number := 0; number < heap.count; number++ {
		made, notes := make_(number)
		heap.entries[number] = entry{&made, C.CString(notes)}
	}
	return heap
}

// Looks at 64 records of those in use.
func (heap *heap) unit(turn int) {
	for step := 0; step < 64; step++ {
		at := (turn*64 + step) * 7919 % heap.inUse
		found := heap.entries[at/heap.run*heap.run*hotOneIn+at%heap.run]
		heap.total += found.record.id + int(*found.notes)
	}
}

// Works in bursts for so long.
func (heap *heap) hot(seconds float64) string {
	var kept [most]time.Duration
	units, busy, end := 0, time.Duration(0), time.Now().Add(time.Duration(seconds*1e9))
	for {
		began := time.Now()
		until := began.Add(burst)
		if end.Before(until) {
			until = end
		}
		last := began
		for last.Before(until) {
			heap.unit(units)
			after := time.Now()
			kept[units%most] = after.Sub(last)
			last = after
			units++
		}
		busy += last.Sub(began)
		if !last.Before(end) {
			break
		}
		next := began.Add(period)
		if end.Before(next) {
			next = end
		}
		time.Sleep(time.Until(next))
	}
	times := kept[:]
	if units < most {
		times = kept[:units]
	}
	sort.Slice(times, func(a, b int) bool { return times[a] < times[b] })
	p99 := time.Duration(0)
	if len(times) > 0 {
		p99 = times[(len(times)*99+99)/100-1]
	}
	return fmt.Sprintf(`{"units":%d,"busy_ns":%d,"p99_ns":%d}`, units, busy.Nanoseconds(), p99.Nanoseconds())
}

func (heap *heap) verify() int {
	wrong := 0
	for number := 0; number < heap.count; number++ {
		made, notes := make_(number)
		wanted := C.CString(notes)
		found, there := heap.entries[number]
		if !there || *found.record != made || C.strcmp(found.notes, wanted) != 0 {
			wrong++
		}
		C.free(unsafe.Pointer(wanted))
	}
	return wrong
}

func main() {
	bytes, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	together, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	heap := load(bytes, together)
	fmt.Printf("{\"items\":%d}\n", heap.count)
	requests := bufio.NewScanner(os.Stdin)
	for requests.Scan() {
		asked := strings.Fields(requests.Text())
		switch asked[0] {
		case "hot":
			seconds, err := strconv.ParseFloat(asked[1], 64)
			if err != nil {
				panic(err)
			}
			fmt.Println(heap.hot(seconds))
		case "spoil":
			*heap.entries[heap.count/2].notes = 'X'
			fmt.Println("{}")
		case "collect":
			runtime.GC()
			fmt.Println("{}")
		case "verify":
			fmt.Printf("{\"wrong\":%d}\n", heap.verify())
		default:
			panic("not a request: " + requests.Text())
		}
	}
}
