package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var scenarios = []scenario{
	{"retry", retry},
	{"rebalance", rebalance},
	{"ordered", ordered},
	{"long-polling", longPolling},
	{"delay-level-1", delayed},
	{"broadcast", broadcast},
	{"offsets", offsets},
	{"sync", single},
	{"async", async},
	{"oneway", oneway},
	{"batch", batch},
	{"tags", tags},
	{"compressed", compressed},
	{"transaction", transaction},
	{"pull", pull},
	{"poll", poll},
}

// single: acknowledgements carry ids and consecutive queue offsets, and the message comes back with the fields it was sent with.
func single(r *run) {
	sender := r.producer()
	sent := map[string]*primitive.SendResult{}
	next := map[int]int64{}
	bodies := texts("sync \u00e4\u4e2d", 20)
	for i, body := range bodies {
		message := r.message(body).WithTag("T" + strconv.Itoa(i%3)).WithKeys([]string{"key" + strconv.Itoa(i)})
		message.WithProperty("colour", "bl\u00e5 "+strconv.Itoa(i))
		message.Flag = int32(i * 7)
		result, err := sender.SendSync(context.Background(), message)
		ok(err, "send")
		check(result.Status == primitive.SendOK, "send status %d", result.Status)
		check(result.MsgID != "" && result.OffsetMsgID != "", "both message ids")
		queue := result.MessageQueue.QueueId
		check(result.QueueOffset == next[queue], "queue offset %d, expected %d", result.QueueOffset, next[queue])
		next[queue]++
		sent[body] = result
	}
	r.fact("sent", len(sent))
	r.fact("queues", len(next))
	box := &inbox{}
	r.consume(r.group("consumer"), "*", box.keep)
	r.exactly(box, bodies)
	messages, _ := box.messages()
	for _, got := range messages {
		result := sent[string(got.Body)]
		body := string(got.Body)
		i, err := strconv.Atoi(strings.TrimLeft(body[strings.LastIndex(body, "-")+1:], "0") + "")
		if err != nil {
			i = 0
		}
		check(got.GetTags() == "T"+strconv.Itoa(i%3), "tags %q", got.GetTags())
		check(got.GetKeys() == "key"+strconv.Itoa(i), "keys %q", got.GetKeys())
		check(got.GetProperty("colour") == "bl\u00e5 "+strconv.Itoa(i), "user property %q", got.GetProperty("colour"))
		check(got.Flag == int32(i*7), "flag %d", got.Flag)
		check(got.QueueOffset == result.QueueOffset, "queue offset %d", got.QueueOffset)
		check(got.MsgId == result.MsgID, "unique id %s, expected %s", got.MsgId, result.MsgID)
		check(got.ReconsumeTimes == 0, "reconsume times %d", got.ReconsumeTimes)
	}
}

func async(r *run) {
	sender := r.producer()
	r.send(sender, texts("first", 1))
	var waiting sync.WaitGroup
	var mutex sync.Mutex
	ids := map[string]bool{}
	var problem error
	bodies := texts("async", 100)
	for _, body := range bodies {
		waiting.Add(1)
		err := sender.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			defer waiting.Done()
			mutex.Lock()
			defer mutex.Unlock()
			if err != nil {
				problem = err
				return
			}
			ids[result.MsgID] = true
		}, r.message(body))
		ok(err, "asynchronous send")
	}
	waiting.Wait()
	ok(problem, "callback")
	r.fact("acknowledged", len(ids))
	check(len(ids) == len(bodies), "distinct ids %d", len(ids))
	box := &inbox{}
	r.consume(r.group("consumer"), "*", box.keep)
	r.exactly(box, append(texts("first", 1), bodies...))
}

func oneway(r *run) {
	sender := r.producer()
	r.send(sender, texts("first", 1))
	bodies := texts("oneway", 20)
	for _, body := range bodies {
		ok(sender.SendOneWay(context.Background(), r.message(body)), "one-way send")
	}
	box := &inbox{}
	r.consume(r.group("consumer"), "*", box.keep)
	r.exactly(box, append(texts("first", 1), bodies...))
}

// batch: one request, many messages, each with a queue offset of its own.
func batch(r *run) {
	sender := r.producer()
	bodies := texts("batch", 25)
	var messages []*primitive.Message
	for _, body := range bodies {
		messages = append(messages, r.message(body).WithTag("B").WithKeys([]string{body}))
	}
	result, err := sender.SendSync(context.Background(), messages...)
	ok(err, "batch")
	check(result.Status == primitive.SendOK, "send status %d", result.Status)
	r.fact("offset_ids", len(strings.Split(result.OffsetMsgID, ",")))
	box := &inbox{}
	r.consume(r.group("consumer"), "B", box.keep)
	r.exactly(box, bodies)
	positions := map[int64]bool{}
	got, _ := box.messages()
	for _, message := range got {
		positions[message.QueueOffset] = true
		check(message.GetKeys() == string(message.Body), "keys %q", message.GetKeys())
	}
	check(len(positions) == len(bodies), "distinct queue offsets %d", len(positions))
}

// ordered: the same sharding key goes to the same queue and comes back in order, one at a time.
func ordered(r *run) {
	const keys, each = 6, 15
	sender := r.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	queues := map[string]map[int]bool{}
	for i := 0; i < each; i++ {
		for key := 0; key < keys; key++ {
			name := "key" + strconv.Itoa(key)
			result, err := sender.SendSync(context.Background(), r.message(fmt.Sprintf("%s:%d", name, i)).WithShardingKey(name))
			ok(err, "send")
			if queues[name] == nil {
				queues[name] = map[int]bool{}
			}
			queues[name][result.MessageQueue.QueueId] = true
		}
	}
	var mutex sync.Mutex
	seen := map[string][]string{}
	inside := map[int]int{}
	overlaps, done := 0, 0
	r.consume(r.group("consumer"), "*", func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		queue := messages[0].Queue.QueueId
		mutex.Lock()
		inside[queue]++
		if inside[queue] > 1 {
			overlaps++
		}
		for _, message := range messages {
			key, number, _ := strings.Cut(string(message.Body), ":")
			seen[key] = append(seen[key], number)
			done++
		}
		mutex.Unlock()
		time.Sleep(time.Millisecond)
		mutex.Lock()
		inside[queue]--
		mutex.Unlock()
		return consumer.ConsumeSuccess, nil
	}, consumer.WithConsumerOrder(true))
	await("all ordered messages", func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return done >= keys*each
	})
	quiet(300 * time.Millisecond)
	mutex.Lock()
	defer mutex.Unlock()
	r.fact("received", done)
	check(done == keys*each, "number of messages %d", done)
	check(overlaps == 0, "two routines in one queue %d times", overlaps)
	var inOrder []string
	for i := 0; i < each; i++ {
		inOrder = append(inOrder, strconv.Itoa(i))
	}
	for name, numbers := range seen {
		check(len(queues[name]) == 1, "queues of %s: %d", name, len(queues[name]))
		check(strings.Join(numbers, " ") == strings.Join(inOrder, " "), "order of %s: %v", name, numbers)
	}
	check(len(seen) == keys, "keys seen %d", len(seen))
}

// tags: `TagA || TagB` gives these two and nothing of TagC or without a tag.
func tags(r *run) {
	sender := r.producer()
	var expected []string
	for i := 0; i < 40; i++ {
		tag := []string{"TagA", "TagB", "TagC", ""}[i%4]
		body := fmt.Sprintf("%s-%d", tag, i)
		message := r.message(body)
		if tag != "" {
			message.WithTag(tag)
		}
		_, err := sender.SendSync(context.Background(), message)
		ok(err, "send")
		if tag == "TagA" || tag == "TagB" {
			expected = append(expected, body)
		}
	}
	box := &inbox{}
	r.consume(r.group("consumer"), "TagA || TagB", box.keep)
	r.exactly(box, expected)
}

// compressed: a compressible body over 4 KiB is stored compressed and comes back equal.
func compressed(r *run) {
	sender := r.producer()
	var text bytes.Buffer
	for text.Len() < 64*1024 {
		fmt.Fprintf(&text, "line %d of a text that compresses well\n", text.Len())
	}
	body := text.Bytes()
	_, err := sender.SendSync(context.Background(), primitive.NewMessage(r.topic, append([]byte(nil), body...)))
	ok(err, "send")
	box := &inbox{}
	r.consume(r.group("consumer"), "*", box.keep)
	await("the compressed message", func() bool { return box.size() == 1 })
	messages, _ := box.messages()
	r.fact("body_bytes", len(body))
	r.fact("stored_bytes", messages[0].StoreSize)
	check(bytes.Equal(body, messages[0].Body), "equal bodies")
	check(int(messages[0].StoreSize) < len(body)/2, "stored compressed")
}

// broadcast: every consumer of the group gets every message.
func broadcast(r *run) {
	sender := r.producer()
	r.send(sender, texts("cast", 20))
	boxes := []*inbox{{}, {}}
	for _, box := range boxes {
		r.consume(r.group("consumer"), "*", box.keep, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	for _, box := range boxes {
		await("the messages that were there", func() bool { return box.has(texts("cast", 20)) })
	}
	r.send(sender, texts("later", 8))
	for _, box := range boxes {
		r.exactly(box, append(texts("cast", 20), texts("later", 8)...))
	}
	r.fact("first", boxes[0].size())
	r.fact("second", boxes[1].size())
}

// rebalance: a second consumer takes some of the queues, nothing is lost, and when it stops the first takes them back.
func rebalance(r *run) {
	sender := r.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	warm := r.producer()
	queues := map[int]*primitive.MessageQueue{}
	alone := texts("alone", 20)
	for _, result := range r.send(warm, alone) {
		queues[result.MessageQueue.QueueId] = result.MessageQueue
	}
	r.fact("queues", len(queues))
	toEach := func(stem string) []string {
		bodies := texts(stem, len(queues))
		i := 0
		for _, queue := range queues {
			message := r.message(bodies[i])
			message.Queue = queue
			_, err := sender.SendSync(context.Background(), message)
			ok(err, "send to a queue")
			i++
		}
		return bodies
	}
	first, second := &inbox{}, &inbox{}
	group := r.group("consumer")
	r.consume(group, "*", first.keep)
	await("everything at the only consumer", func() bool { return first.has(alone) })
	leaver := r.consume(group, "*", second.keep)
	joined := time.Now()
	expected := alone
	rounds := 0
	await("both consumers get new messages", func() bool {
		before, mine := first.size(), second.size()
		bodies := toEach(fmt.Sprintf("shared%d", rounds))
		rounds++
		expected = append(expected, bodies...)
		deadline := time.Now().Add(5 * time.Second)
		for first.size()+second.size() < before+mine+len(queues) && time.Now().Before(deadline) {
			time.Sleep(20 * time.Millisecond)
		}
		return first.size() > before && second.size() > mine
	})
	r.fact("share_ms", time.Since(joined).Milliseconds())
	r.fact("first", first.size())
	r.fact("second", second.size())

	ok(leaver.Shutdown(), "shutdown")
	left := time.Now()
	back := toEach("back")
	expected = append(expected, back...)
	await("the first consumer has everything again", func() bool { return first.has(back) })
	r.fact("takeover_ms", time.Since(left).Milliseconds())
	one, two := first.texts(), second.texts()
	lost := 0
	for _, body := range expected {
		if one[body]+two[body] == 0 {
			lost++
		}
	}
	r.fact("sent", len(expected))
	r.fact("lost", lost)
	check(lost == 0, "%d messages lost", lost)
}

// retry: two failures, three deliveries with rising reconsume times, at least a second apart.
func retry(r *run) {
	sender := r.producer()
	body := texts("retry", 1)
	group := r.group("consumer")
	// The group's first member makes the retry topic; the client looks for its route only when it starts, and then every 30 s. It
	// subscribes to a tag nobody sends, so it takes nothing.
	r.send(sender, texts("warm", 1))
	ok(r.consume(group, "nobody", (&inbox{}).keep).Shutdown(), "shutdown")
	r.routed("%RETRY%" + group)
	box := &inbox{}
	failing := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			if string(message.Body) != body[0] {
				continue
			}
			box.add(message)
			if message.ReconsumeTimes < 2 {
				consuming, is := primitive.GetConcurrentlyCtx(ctx)
				if !is {
					return consumer.ConsumeRetryLater, nil
				}
				consuming.DelayLevelWhenNextConsume = 1
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	r.consume(group, "*", failing)
	r.send(sender, body)
	await("three deliveries", func() bool { return box.size() >= 3 })
	quiet(1500 * time.Millisecond)
	messages, moments := box.messages()
	var reconsume []int32
	for _, message := range messages {
		reconsume = append(reconsume, message.ReconsumeTimes)
	}
	r.fact("deliveries", len(messages))
	r.fact("reconsume_times", reconsume)
	check(fmt.Sprint(reconsume) == "[0 1 2]", "reconsume times %v", reconsume)
	for i := 1; i < 3; i++ {
		check(moments[i].Sub(moments[i-1]) >= 990*time.Millisecond, "a second between deliveries, was %v", moments[i].Sub(moments[i-1]))
		check(messages[i].Topic == r.topic, "topic %s", messages[i].Topic)
	}
}

// delayed: delay level 1 arrives after a second, not before and not long after.
func delayed(r *run) {
	sender := r.producer()
	r.send(sender, texts("now", 4))
	box := &inbox{}
	r.consume(r.group("consumer"), "*", box.keep)
	await("the messages without delay", func() bool { return box.has(texts("now", 4)) })
	message := r.message("later").WithDelayTimeLevel(1)
	sent := time.Now()
	_, err := sender.SendSync(context.Background(), message)
	ok(err, "send")
	await("the delayed message", func() bool { return box.has([]string{"later"}) })
	messages, moments := box.messages()
	for i, each := range messages {
		if string(each.Body) == "later" {
			took := moments[i].Sub(sent)
			r.fact("took_ms", took.Milliseconds())
			check(took >= time.Second && took < 4*time.Second, "delay was %v", took)
		}
	}
}

// byText says what a message's text says its transaction does: at once, or when the broker asks.
type byText struct{}

func (byText) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch text := string(message.Body); {
	case strings.HasPrefix(text, "commit"):
		return primitive.CommitMessageState
	case strings.HasPrefix(text, "rollback"):
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (byText) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	if strings.HasPrefix(string(message.Body), "later") {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

// transaction: each message is delivered as its transaction ended, once; the broker asks for open ones.
func transaction(r *run) {
	sender, err := rocketmq.NewTransactionProducer(byText{},
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{r.namesrv})),
		producer.WithInstanceName(r.instance()),
		producer.WithGroupName(r.group("transaction")))
	ok(err, "a transaction producer")
	ok(sender.Start(), "start")
	r.closing(sender.Shutdown)
	for _, kind := range []string{"commit", "rollback", "later", "never"} {
		for _, body := range texts(kind, 5) {
			result, err := sender.SendMessageInTransaction(context.Background(), r.message(body))
			ok(err, "send")
			check(result.Status == primitive.SendOK, "send status %d", result.Status)
		}
	}
	box := &inbox{}
	r.consume(r.group("consumer"), "*", box.keep)
	r.exactly(box, append(texts("commit", 5), texts("later", 5)...))
}

// longPolling: a pull that is held at the broker answers as soon as a message arrives.
func longPolling(r *run) {
	sender := r.producer()
	r.send(sender, texts("warm", 4))
	box := &inbox{}
	r.consume(r.group("consumer"), "*", box.keep)
	await("the messages that were there", func() bool { return box.has(texts("warm", 4)) })
	var latencies []int64
	worst := int64(0)
	for _, body := range texts("wake", 5) {
		quiet(700 * time.Millisecond)
		start := time.Now()
		r.send(sender, []string{body})
		await("wake-up", func() bool { return box.has([]string{body}) })
		took := time.Since(start).Milliseconds()
		latencies = append(latencies, took)
		worst = max(worst, took)
	}
	r.fact("latencies_ms", latencies)
	r.fact("worst_ms", worst)
	check(worst < 1000, "every wake-up under a second: %v", latencies)
}

// offsets: a group that comes back goes on where it stopped.
func offsets(r *run) {
	sender := r.producer()
	group := r.group("consumer")
	r.send(sender, texts("before", 24))
	first, second := &inbox{}, &inbox{}
	leaver := r.consume(group, "*", first.keep)
	r.exactly(first, texts("before", 24))
	ok(leaver.Shutdown(), "shutdown")
	r.send(sender, texts("while", 12))
	r.consume(group, "*", second.keep)
	r.exactly(second, texts("while", 12))
	r.fact("first", first.size())
	r.fact("second", second.size())
}

func (r *run) pullConsumer(group string) rocketmq.PullConsumer {
	var started rocketmq.PullConsumer
	await("start of a pull consumer", func() bool {
		made, err := rocketmq.NewPullConsumer(
			consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{r.namesrv})),
			consumer.WithGroupName(group),
			consumer.WithInstance(r.instance()),
			consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		)
		ok(err, "new pull consumer")
		ok(made.Subscribe(r.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}), "subscribe")
		if made.Start() != nil {
			return false
		}
		started = made
		return true
	})
	r.closing(started.Shutdown)
	return started
}

// pull: the application names queue and offset, and reads every queue from its beginning to its end.
func pull(r *run) {
	sender := r.producer()
	bodies := texts("pull", 40)
	lasts := map[int]*primitive.SendResult{}
	for _, result := range r.send(sender, bodies) {
		lasts[result.MessageQueue.QueueId] = result
	}
	r.fact("queues", len(lasts))
	reader := r.pullConsumer(r.group("consumer"))
	got := map[string]bool{}
	for _, last := range lasts {
		offset := int64(0)
		for offset <= last.QueueOffset {
			result, err := reader.PullFrom(context.Background(), last.MessageQueue, offset, 3)
			ok(err, "pull")
			check(result.Status == primitive.PullFound, "pull status %d", result.Status)
			check(result.MaxOffset == last.QueueOffset+1, "maximum offset %d", result.MaxOffset)
			messages := result.GetMessageExts()
			check(len(messages) > 0 && len(messages) <= 3, "messages in the answer %d", len(messages))
			for _, message := range messages {
				check(message.QueueOffset == offset, "offset %d, expected %d", message.QueueOffset, offset)
				got[string(message.Body)] = true
				offset++
			}
			check(result.NextBeginOffset == offset, "next offset %d", result.NextBeginOffset)
		}
	}
	r.fact("received", len(got))
	check(len(got) == len(bodies), "everything pulled: %d", len(got))
}

// poll: the pull consumer shares out the queues itself and the application only polls and acknowledges.
func poll(r *run) {
	sender := r.producer()
	bodies := texts("poll", 30)
	r.send(sender, bodies)
	reader := r.pullConsumer(r.group("consumer"))
	got := map[string]bool{}
	await("everything polled", func() bool {
		request, err := reader.Poll(context.Background(), 200*time.Millisecond)
		if err != nil {
			return false
		}
		for _, message := range request.GetMsgList() {
			got[string(message.Body)] = true
		}
		reader.ACK(context.Background(), request, consumer.ConsumeSuccess)
		return len(got) >= len(bodies)
	})
	r.fact("received", len(got))
	check(len(got) == len(bodies), "everything polled: %d", len(got))
}
