// What RocketMQ's Go client of version 5 does: scenarios ENDPOINT PREFIX [WITHOUT...]. Topics and groups are PREFIX and the name of
// the scenario. One line of "name=value" for each scenario.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const patience = 90 * time.Second

type texts struct {
	sync.Mutex
	all []string
}

func (t *texts) add(text string) {
	t.Lock()
	defer t.Unlock()
	t.all = append(t.all, text)
}

func (t *texts) sorted() []string {
	t.Lock()
	defer t.Unlock()
	found := slices.Clone(t.all)
	slices.Sort(found)
	return found
}

func (t *texts) await(count int) {
	for end := time.Now().Add(patience); len(t.sorted()) < count; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			panic(fmt.Sprintf("not in time: %v", t.all))
		}
	}
}

func show(found []string) string {
	return "[" + strings.Join(found, ", ") + "]"
}

func config(name string) *rocketmq.Config {
	return &rocketmq.Config{Endpoint: os.Args[1], ConsumerGroup: os.Args[2] + name + "-group",
		Credentials: &credentials.SessionCredentials{}}
}

func producer(name string, more ...rocketmq.ProducerOption) rocketmq.Producer {
	made, err := rocketmq.NewProducer(config(name), append(more, rocketmq.WithTopics(os.Args[2]+name))...)
	check(err)
	check(made.Start())
	return made
}

func pushed(name string, filter *rocketmq.FilterExpression, handle func(string, *rocketmq.MessageView) bool) rocketmq.PushConsumer {
	listener := &rocketmq.FuncMessageListener{Consume: func(view *rocketmq.MessageView) rocketmq.ConsumerResult {
		if handle(string(view.GetBody()), view) {
			return rocketmq.SUCCESS
		}
		return rocketmq.FAILURE
	}}
	made, err := rocketmq.NewPushConsumer(config(name), rocketmq.WithPushAwaitDuration(5*time.Second),
		rocketmq.WithPushSubscriptionExpressions(map[string]*rocketmq.FilterExpression{os.Args[2] + name: filter}),
		rocketmq.WithPushMessageListener(listener))
	check(err)
	check(made.Start())
	return made
}

func received(name string, filter *rocketmq.FilterExpression) rocketmq.SimpleConsumer {
	made, err := rocketmq.NewSimpleConsumer(config(name), rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{os.Args[2] + name: filter}))
	check(err)
	check(made.Start())
	return made
}

func message(name, body string) *rocketmq.Message {
	return &rocketmq.Message{Topic: os.Args[2] + name, Body: []byte(body)}
}

func send(from rocketmq.Producer, sent *rocketmq.Message) *rocketmq.SendReceipt {
	receipts, err := from.Send(context.TODO(), sent)
	check(err)
	return receipts[0]
}

func push() string {
	got := &texts{}
	from := producer("push")
	to := pushed("push", rocketmq.NewFilterExpression("a || b"), func(body string, view *rocketmq.MessageView) bool {
		got.add(fmt.Sprintf("%s%s[%s]{p=%s}", body, *view.GetTag(), view.GetKeys()[0], view.GetProperties()["p"]))
		return true
	})
	for at := range 6 {
		each := message("push", fmt.Sprint(at))
		each.SetTag("abc"[at%3 : at%3+1])
		each.SetKeys(fmt.Sprintf("k%d", at))
		each.AddProperty("p", "v")
		send(from, each)
	}
	got.await(4)
	time.Sleep(500 * time.Millisecond)
	stop(from, to)
	return show(got.sorted())
}

// Apache's broker keeps what it has noticed of a lite topic, also that its last message was acked, for the client's next
// pop, which comes with one3.
func lite() string {
	got := &texts{}
	from := producer("lite")
	listener := &rocketmq.FuncMessageListener{Consume: func(view *rocketmq.MessageView) rocketmq.ConsumerResult {
		got.add(view.GetLiteTopic() + string(view.GetBody()))
		return rocketmq.SUCCESS
	}}
	to, err := rocketmq.NewLitePushConsumer(config("lite"), rocketmq.NewLitePushConsumerConfig(os.Args[2]+"lite", 30*time.Second),
		rocketmq.WithPushAwaitDuration(5*time.Second), rocketmq.WithPushMessageListener(listener))
	check(err)
	check(to.Start())
	check(to.SubscribeLite("one"))
	check(to.SubscribeLite("two"))
	say := func(name, body string) {
		each := message("lite", body)
		each.SetLiteTopic(name)
		send(from, each)
	}
	for at := range 3 {
		for _, name := range []string{"one", "two", "three"} {
			say(name, fmt.Sprint(at))
		}
	}
	got.await(6)
	say("one", "3")
	got.await(7)
	check(to.UnSubscribeLite("two"))
	say("two", "3")
	say("one", "4")
	got.await(8)
	time.Sleep(500 * time.Millisecond)
	check(to.GracefulStop())
	check(from.GracefulStop())
	return show(got.sorted())
}

func fifo() string {
	got, failures := &texts{}, 0
	from := producer("fifo")
	to := pushed("fifo", rocketmq.SUB_ALL, func(body string, _ *rocketmq.MessageView) bool {
		if body == "b1" {
			failures++
			if failures == 1 {
				return false
			}
		}
		got.add(body)
		return true
	})
	for at := range 4 {
		for _, group := range []string{"a", "b", "c"} {
			each := message("fifo", fmt.Sprint(group, at))
			each.SetMessageGroup(group)
			send(from, each)
		}
	}
	got.await(12)
	stop(from, to)
	orders := []string{}
	for _, group := range []string{"a", "b", "c"} {
		order := ""
		for _, each := range got.all {
			if strings.HasPrefix(each, group) {
				order += each
			}
		}
		orders = append(orders, order)
	}
	return fmt.Sprintf("%s failed %d in all %d", show(orders), failures, len(got.all))
}

func timed() string {
	late := make(chan time.Duration, 9)
	due := time.Now().Add(3 * time.Second)
	from := producer("timed")
	to := pushed("timed", rocketmq.SUB_ALL, func(string, *rocketmq.MessageView) bool {
		late <- time.Since(due)
		return true
	})
	each := message("timed", "later")
	each.SetDelayTimestamp(due)
	send(from, each)
	defer stop(from, to)
	select {
	case found := <-late:
		if found > -1100*time.Millisecond {
			return "not early"
		}
		return fmt.Sprint("early by ", -found)
	case <-time.After(patience):
		return "never"
	}
}

func transaction() string {
	got, asked := &texts{}, &texts{}
	checker := &rocketmq.TransactionChecker{Check: func(view *rocketmq.MessageView) rocketmq.TransactionResolution {
		asked.add(string(view.GetBody()))
		return rocketmq.COMMIT
	}}
	from := producer("transaction", rocketmq.WithTransactionChecker(checker))
	to := pushed("transaction", rocketmq.SUB_ALL, func(body string, _ *rocketmq.MessageView) bool {
		if !slices.Contains(got.sorted(), body) {
			got.add(body)
		}
		return true
	})
	begun := func(body string) rocketmq.Transaction {
		made := from.BeginTransaction()
		_, err := from.SendWithTransaction(context.TODO(), message("transaction", body), made)
		check(err)
		return made
	}
	check(begun("committed").Commit())
	check(begun("rolled back").RollBack())
	begun("asked")
	got.await(2)
	stop(from, to)
	return show(got.sorted()) + " asked " + show(slices.Compact(asked.sorted()))
}

func simple() string {
	got := &texts{}
	from, to := producer("simple"), received("simple", rocketmq.NewFilterExpressionWithType("amount > 2", rocketmq.SQL92))
	for at := range 5 {
		each := message("simple", fmt.Sprint(at))
		each.AddProperty("amount", fmt.Sprint(at))
		send(from, each)
	}
	for end := time.Now().Add(patience); len(got.all) < 3 && time.Now().Before(end); {
		found, _ := to.Receive(context.TODO(), 16, 30*time.Second)
		for _, view := range found {
			got.add(fmt.Sprintf("%s/%d", view.GetBody(), view.GetDeliveryAttempt()))
			if string(view.GetBody()) == "3" && view.GetDeliveryAttempt() == 1 {
				check(to.ChangeInvisibleDuration(view, time.Second))
			} else {
				check(to.Ack(context.TODO(), view))
			}
		}
	}
	check(from.GracefulStop())
	check(to.GracefulStop())
	return show(got.sorted())
}

func dead() string {
	got := &texts{}
	from := producer("dead")
	to := pushed("dead", rocketmq.SUB_ALL, func(_ string, view *rocketmq.MessageView) bool {
		got.add(fmt.Sprint(view.GetDeliveryAttempt()))
		return false
	})
	send(from, message("dead", "bad"))
	got.await(2)
	time.Sleep(3 * time.Second)
	stop(from, to)
	return show(got.sorted())
}

func stop(from rocketmq.Producer, to rocketmq.PushConsumer) {
	check(from.GracefulStop())
	check(to.GracefulStop())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	rocketmq.EnableSsl = false
	rocketmq.ResetLogger()
	scenarios := map[string]func() string{
		"push": push, "fifo": fifo, "timed": timed, "transaction": transaction, "simple": simple, "dead": dead, "lite": lite,
	}
	var all sync.WaitGroup
	for name, scenario := range scenarios {
		if slices.Contains(os.Args[3:], name) {
			continue
		}
		all.Add(1)
		go func() {
			defer all.Done()
			defer func() {
				if failure := recover(); failure != nil {
					fmt.Printf("%s=failed: %v\n", name, failure)
				}
			}()
			result := scenario()
			fmt.Printf("%s=%s\n", name, result)
		}()
	}
	all.Wait()
}
