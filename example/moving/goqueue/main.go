// Goqueue is the shop of ../after on dq of go-queue: two servers of beanstalkd, and Redis.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/zeromicro/go-queue/dq"
	"github.com/zeromicro/go-zero/core/logx"
	"github.com/zeromicro/go-zero/core/stores/redis"
)

// open counts what has yet to happen.
var open sync.WaitGroup

func say(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	open.Done()
}

// A shop remembers the IDs of the messages: dq gives them.
type shop struct {
	producer dq.Producer
	ids      map[string]string
}

// place sends the end of an order that is not paid in time.
func (s *shop) place(order string) error {
	ids, err := s.producer.Delay([]byte("cancel "+order), 2*time.Second)
	s.ids[order] = ids
	return err
}

// pay keeps an order. Nothing tells whether it is cancelled already.
func (s *shop) pay(order string) error {
	err := s.producer.Revoke(s.ids[order])
	say("%s is paid", order)
	return err
}

// consume handles all messages. What fails is not sent again, unless it is sent here.
func (s *shop) consume(body []byte) {
	kind, about, _ := strings.Cut(string(body), " ")
	switch kind {
	case "cancel":
		say("%s is cancelled", about)
	case "welcome":
		say("the mail to %s failed", about)
		if _, err := s.producer.Delay([]byte("again "+about), time.Second); err != nil {
			log.Print(err)
		}
	case "again":
		say("welcome, %s", about)
	}
}

func run() error {
	logx.Disable()
	var nodes []dq.Beanstalk
	for _, endpoint := range strings.Split(os.Getenv("BEANSTALKS"), ",") {
		nodes = append(nodes, dq.Beanstalk{Endpoint: endpoint, Tube: "shop"})
	}
	host := strings.TrimSuffix(strings.TrimPrefix(os.Getenv("REDIS_URL"), "redis://"), "/0")
	s := &shop{dq.NewProducer(nodes), map[string]string{}}
	defer s.producer.Close()
	consumer := dq.NewConsumer(dq.DqConf{
		Beanstalks: nodes, Redis: redis.RedisConf{Host: host, Type: redis.NodeType},
	})
	go consumer.Consume(s.consume) // until the process ends

	open.Add(4)
	_, err := s.producer.Delay([]byte("welcome anna"), time.Second)
	err = errors.Join(err, s.place("order-1"), s.place("order-2"), s.pay("order-2"))
	if err == nil {
		open.Wait()
	}
	return err
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
