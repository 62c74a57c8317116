package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const memberPatience = 120 * time.Second

// halves are scenarios that are one half of an exchange with another client; not part of `all`.
var halves = []scenario{{"member", member}}

// member belongs to `--group`, `--order` none or queue, until the file `--stop` exists. Appends the bodies to the file `--log` as they are
// handled.
func member(r *run) {
	log, err := os.OpenFile(r.option("--log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	ok(err, "the log")
	defer log.Close()
	failing := strings.Split(r.option("--fail"), ",")
	var mutex sync.Mutex
	handled := []map[string]any{}
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mutex.Lock()
		defer mutex.Unlock()
		result := consumer.ConsumeSuccess
		for _, message := range messages {
			text := string(message.Body)
			for _, each := range failing {
				if each == text && message.ReconsumeTimes == 0 {
					result = consumer.ConsumeRetryLater
					if r.option("--order") == "queue" {
						result = consumer.SuspendCurrentQueueAMoment
					}
				}
			}
			handled = append(handled, map[string]any{
				"text": text, "queue": message.Queue.BrokerName + ":" + strconv.Itoa(message.Queue.QueueId), "offset": message.QueueOffset,
				"times": message.ReconsumeTimes, "topic": message.Topic,
			})
			_, err := log.WriteString(text + "\n")
			ok(err, "write")
		}
		return result, nil
	}
	r.consume(r.option("--group"), "*", take, consumer.WithConsumerOrder(r.option("--order") == "queue"))
	deadline := time.Now().Add(memberPatience)
	for {
		if _, err := os.Stat(r.option("--stop")); err == nil {
			break
		}
		check(time.Now().Before(deadline), "not within %v: the file %s", memberPatience, r.option("--stop"))
		time.Sleep(20 * time.Millisecond)
	}
	r.close()
	mutex.Lock()
	defer mutex.Unlock()
	r.fact("handled", handled)
}
