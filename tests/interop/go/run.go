package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const patience = 30 * time.Second

// failure is what a check that does not hold panics with.
type failure string

// run is one scenario under way: its names, the clients it made, what it saw. Every client has an instance name of its own.
type run struct {
	namesrv string
	topic   string
	options map[string]string

	mutex   sync.Mutex
	clients int
	facts   map[string]any
	closers []func() error
}

func newRun(namesrv, name string, options map[string]string) *run {
	topic := "go_" + strings.ReplaceAll(name, "-", "_") + "_" + options["--id"]
	if given, is := options["--topic"]; is {
		topic = given
	}
	return &run{namesrv: namesrv, topic: topic, options: options, facts: map[string]any{}}
}

func (r *run) option(name string) string {
	value, is := r.options[name]
	check(is, "this scenario needs %s", name)
	return value
}

func (r *run) fact(name string, value any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.facts[name] = value
}

func (r *run) seen() map[string]any {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	copied := map[string]any{}
	for name, value := range r.facts {
		copied[name] = value
	}
	return copied
}

func (r *run) group(suffix string) string { return r.topic + "_" + suffix }

func (r *run) instance() string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.clients++
	return fmt.Sprintf("%s_%d", r.topic, r.clients)
}

func (r *run) closing(closer func() error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.closers = append(r.closers, closer)
}

func (r *run) close() {
	r.mutex.Lock()
	closers := r.closers
	r.closers = nil
	r.mutex.Unlock()
	for i := len(closers) - 1; i >= 0; i-- {
		_ = closers[i]()
	}
}

func check(holds bool, format string, arguments ...any) {
	if !holds {
		panic(failure(fmt.Sprintf(format, arguments...)))
	}
}

func ok(err error, what string) {
	check(err == nil, "%s: %v", what, err)
}

// await asks again and again until the answer is true.
func await(what string, condition func() bool) {
	deadline := time.Now().Add(patience)
	for !condition() {
		check(time.Now().Before(deadline), "not within %v: %s", patience, what)
		time.Sleep(20 * time.Millisecond)
	}
}

// quiet lets time pass in which something must not happen.
func quiet(duration time.Duration) { time.Sleep(duration) }

// inbox is what a consumer was given, in the order it was given.
type inbox struct {
	mutex sync.Mutex
	all   []*primitive.MessageExt
	times []time.Time
}

func (b *inbox) add(messages ...*primitive.MessageExt) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for _, message := range messages {
		b.all = append(b.all, message)
		b.times = append(b.times, time.Now())
	}
}

func (b *inbox) size() int {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return len(b.all)
}

func (b *inbox) messages() ([]*primitive.MessageExt, []time.Time) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return append([]*primitive.MessageExt(nil), b.all...), append([]time.Time(nil), b.times...)
}

func (b *inbox) texts() map[string]int {
	messages, _ := b.messages()
	texts := map[string]int{}
	for _, message := range messages {
		texts[string(message.Body)]++
	}
	return texts
}

func (b *inbox) has(expected []string) bool {
	texts := b.texts()
	for _, text := range expected {
		if texts[text] == 0 {
			return false
		}
	}
	return true
}

func texts(stem string, count int) []string {
	var all []string
	for i := 0; i < count; i++ {
		all = append(all, fmt.Sprintf("%s-%04d", stem, i))
	}
	return all
}

// exactly waits until the inbox has all of them, then a moment longer, and wants each once and nothing else.
func (r *run) exactly(box *inbox, expected []string) {
	await("all deliveries", func() bool { return box.has(expected) })
	quiet(300 * time.Millisecond)
	r.fact("received", box.size())
	got := box.texts()
	var extra []string
	for text, times := range got {
		if times != 1 {
			extra = append(extra, text)
		}
	}
	sort.Strings(extra)
	check(len(extra) == 0, "delivered more than once: %v", extra)
	check(len(got) == len(expected), "expected %d, got %d", len(expected), len(got))
}

func (r *run) producer(options ...producer.Option) rocketmq.Producer {
	options = append([]producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{r.namesrv})),
		producer.WithGroupName(r.group("producer")),
		producer.WithInstanceName(r.instance()),
		producer.WithRetry(2),
		producer.WithSendMsgTimeout(10 * time.Second),
	}, options...)
	made, err := rocketmq.NewProducer(options...)
	ok(err, "new producer")
	ok(made.Start(), "start of the producer")
	r.closing(made.Shutdown)
	return made
}

func (r *run) message(text string) *primitive.Message {
	return primitive.NewMessage(r.topic, []byte(text))
}

func (r *run) send(sender rocketmq.Producer, bodies []string) []*primitive.SendResult {
	var results []*primitive.SendResult
	for _, body := range bodies {
		result, err := sender.SendSync(context.Background(), r.message(body))
		ok(err, "send")
		check(result.Status == primitive.SendOK, "send status %d", result.Status)
		results = append(results, result)
	}
	return results
}

// routed waits until the name server knows the topic.
func (r *run) routed(topic string) {
	asker, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{r.namesrv})))
	ok(err, "new admin")
	defer asker.Close()
	await("route of "+topic, func() bool {
		queues, err := asker.FetchPublishMessageQueues(context.Background(), topic)
		return err == nil && len(queues) > 0
	})
}

type handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

// consume starts a push consumer. The client refuses to start on a topic that the name server does not know yet, so it is made again
// until it starts.
func (r *run) consume(group, expression string, handle handler, options ...consumer.Option) rocketmq.PushConsumer {
	var started rocketmq.PushConsumer
	await("start of a consumer", func() bool {
		all := append([]consumer.Option{
			consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{r.namesrv})),
			consumer.WithGroupName(group),
			consumer.WithInstance(r.instance()),
			consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		}, options...)
		made, err := rocketmq.NewPushConsumer(all...)
		ok(err, "new push consumer")
		ok(made.Subscribe(r.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: expression}, handle), "subscribe")
		if made.Start() != nil {
			return false
		}
		started = made
		return true
	})
	r.closing(started.Shutdown)
	return started
}

func (b *inbox) keep(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	b.add(messages...)
	return consumer.ConsumeSuccess, nil
}
