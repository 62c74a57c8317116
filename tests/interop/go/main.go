// Plays scenarios of Apache's Go client against a cluster and prints one JSON line for each.
//
//	interop SCENARIO[,SCENARIO...]|all NAMESRV [--id ID] [--threads N] [--limit SECONDS]
//
// Exit code 0: all proved; 1: at least one not proved; 2: wrong usage.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type line struct {
	Scenario string         `json:"scenario"`
	OK       bool           `json:"ok"`
	Seconds  float64        `json:"seconds"`
	Facts    map[string]any `json:"facts"`
	Error    *string        `json:"error"`
}

type scenario struct {
	name string
	play func(*run)
}

func main() {
	if len(os.Args) < 3 {
		usage("two arguments are needed")
	}
	options := map[string]string{"--id": strconv.FormatInt(time.Now().UnixMilli(), 36), "--threads": "1", "--limit": "60"}
	for i := 3; i+1 < len(os.Args); i += 2 {
		options[os.Args[i]] = os.Args[i+1]
	}
	threads, err := strconv.Atoi(options["--threads"])
	if err != nil || threads < 1 {
		usage("--threads wants a number from 1")
	}
	limit, err := strconv.Atoi(options["--limit"])
	if err != nil || limit < 1 {
		usage("--limit wants a number from 1")
	}
	rlog.SetLogLevel("error")

	wanted := pick(os.Args[1])
	todo := make(chan scenario, len(wanted))
	for _, each := range wanted {
		todo <- each
	}
	close(todo)
	var printing sync.Mutex
	var workers sync.WaitGroup
	allProved := true
	for i := 0; i < threads; i++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for each := range todo {
				outcome := play(each, os.Args[2], options, time.Duration(limit)*time.Second)
				text, err := json.Marshal(outcome)
				printing.Lock()
				if err != nil {
					fmt.Fprintln(os.Stderr, each.name, err)
				} else {
					fmt.Println(string(text))
				}
				allProved = allProved && outcome.OK && err == nil
				printing.Unlock()
			}
		}()
	}
	workers.Wait()
	if !allProved {
		os.Exit(1)
	}
}

func usage(why string) {
	fmt.Fprintf(os.Stderr, "%s\nusage: interop SCENARIO[,...]|all NAMESRV [--id ID] [--threads N] [--limit SECONDS]\n", why)
	os.Exit(2)
}

func pick(names string) []scenario {
	if names == "all" {
		return scenarios
	}
	var picked []scenario
	for _, name := range strings.Split(names, ",") {
		found := false
		for _, each := range append(append([]scenario{}, scenarios...), halves...) {
			if each.name == name {
				picked = append(picked, each)
				found = true
			}
		}
		if !found {
			usage("no scenario " + name)
		}
	}
	return picked
}

func play(each scenario, namesrv string, options map[string]string, limit time.Duration) line {
	start := time.Now()
	this := newRun(namesrv, each.name, options)
	ended := make(chan string, 1)
	go func() {
		reason := ""
		defer func() {
			if problem := recover(); problem != nil {
				if failed, is := problem.(failure); is {
					reason = string(failed)
				} else {
					reason = fmt.Sprintf("%v\n%s", problem, debug.Stack())
				}
			}
			this.close()
			ended <- reason
		}()
		each.play(this)
	}()
	var reason string
	select {
	case reason = <-ended:
	case <-time.After(limit):
		reason = fmt.Sprintf("scenario did not end within %v", limit)
	}
	outcome := line{Scenario: each.name, OK: reason == "", Seconds: time.Since(start).Seconds(), Facts: this.seen()}
	if reason != "" {
		outcome.Error = &reason
	}
	return outcome
}
