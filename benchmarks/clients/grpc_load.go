// A load by RocketMQ's Go client of version 5: load ENDPOINT TOPIC MESSAGES CALLS. Sends messages of 1 KiB with so many
// calls in flight, then receives and acknowledges them. Prints the seconds of both, in JSON, and waits for a line
// of standard input before each.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func config(group string) *rocketmq.Config {
	return &rocketmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func together(calls int, work func()) float64 {
	start := time.Now()
	var all sync.WaitGroup
	for range calls {
		all.Add(1)
		go func() {
			defer all.Done()
			work()
		}()
	}
	all.Wait()
	return time.Since(start).Seconds()
}

func main() {
	rocketmq.EnableSsl = false
	topic := os.Args[2]
	messages, _ := strconv.Atoi(os.Args[3])
	calls, _ := strconv.Atoi(os.Args[4])
	lines := bufio.NewScanner(os.Stdin)
	producer, _ := rocketmq.NewProducer(config(""), rocketmq.WithTopics(topic))
	check(producer.Start())
	consumer, _ := rocketmq.NewSimpleConsumer(config(topic+"-group"), rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL}))
	check(consumer.Start())
	body := make([]byte, 1024)
	var left atomic.Int64
	fmt.Println(`{"ready": true}`)

	lines.Scan()
	left.Store(int64(messages))
	seconds := together(calls, func() {
		for left.Add(-1) >= 0 {
			_, err := producer.Send(context.Background(), &rocketmq.Message{Topic: topic, Body: body})
			check(err)
		}
	})
	fmt.Printf("{\"seconds\": %f, \"messages\": %d}\n", seconds, messages)

	lines.Scan()
	var done atomic.Int64
	var last atomic.Int64
	start := time.Now()
	together(calls, func() {
		for done.Load() < int64(messages) {
			found, err := consumer.Receive(context.Background(), 32, 60*time.Second)
			if err != nil {
				continue
			}
			for _, message := range found {
				check(consumer.Ack(context.Background(), message))
				if done.Add(1) == int64(messages) {
					last.Store(int64(time.Since(start)))
				}
			}
		}
	})
	seconds = time.Duration(last.Load()).Seconds()
	fmt.Printf("{\"seconds\": %f, \"messages\": %d}\n", seconds, messages)
	producer.GracefulStop()
	consumer.GracefulStop()
}
