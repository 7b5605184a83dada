package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Members are consumers of one group that come and go. A place has one member at a time; each lives
// for a drawn time, leaves, and another one follows. A signal to end lets all of them leave.
//
// They print a line for each event, with microseconds since 1970 and the name of the member:
//
//	TIME NAME assigned|revoked|lost PARTITION,...
//	TIME NAME read EPOCH PARTITION OFFSET,...
//	TIME NAME left -
//	TIME NAME error TEXT
type Members struct {
	Brokers  string  `json:"brokers"`
	Group    string  `json:"group"`
	Topic    string  `json:"topic"`
	Count    int     `json:"count"`
	Shortest float64 `json:"shortest"` // seconds of a life
	Longest  float64 `json:"longest"`
	Seed     int64   `json:"seed"`
	Protocol string  `json:"protocol"`   // consumer (KIP-848) or classic
	Session  int64   `json:"session_ms"` // of the classic protocol
	Name     string  `json:"name"`       // with which the names of members begin
}

const (
	pollTime      = 500 * time.Millisecond
	commitTime    = 10 * time.Second
	heartbeatTime = time.Second // of the classic protocol
	recordsMax    = 100         // of one poll
)

func (its *Members) run() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var done sync.WaitGroup
	for place := range its.Count {
		done.Add(1)
		go func() {
			defer done.Done()
			draw := rand.New(rand.NewSource(its.Seed*1000 + int64(place)))
			for life := 0; ctx.Err() == nil; life++ {
				seconds := its.Shortest + draw.Float64()*(its.Longest-its.Shortest)
				limited, cancel := context.WithTimeout(ctx, time.Duration(seconds*float64(time.Second)))
				(&member{name: fmt.Sprintf("%s-%d.%d", its.Name, place, life)}).live(limited, its)
				cancel()
			}
		}()
	}
	done.Wait()
}

type member struct {
	name string
}

func (its *member) note(event, more string) {
	fmt.Fprintf(os.Stdout, "%d %s %s %s\n", time.Now().UnixMicro(), its.name, event, strings.ReplaceAll(more, "\n", " "))
}

// live is one member until the context ends. It commits what it has read before it polls again, and
// a rebalance waits for that.
func (its *member) live(ctx context.Context, of *Members) {
	noted := func(event string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
			if len(places[of.Topic]) > 0 {
				its.note(event, listed(places[of.Topic]))
			}
		}
	}
	made, err := kgo.NewClient(append(of.protocol(),
		kgo.SeedBrokers(strings.Split(of.Brokers, ",")...),
		kgo.ConsumerGroup(of.Group),
		kgo.ConsumeTopics(of.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.FetchMaxWait(pollTime),
		kgo.OnPartitionsAssigned(noted("assigned")),
		kgo.OnPartitionsRevoked(noted("revoked")),
		kgo.OnPartitionsLost(noted("lost")),
	)...)
	if err != nil {
		fail(err)
	}
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, pollTime)
		found := made.PollRecords(limited, recordsMax)
		cancel()
		its.process(made, found)
		made.AllowRebalance()
	}
	made.CloseAllowingRebalance()
	its.note("left", "-")
}

// protocol returns the options of the protocol of the group.
func (its *Members) protocol() []kgo.Opt {
	if its.Protocol == "consumer" {
		return []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())}
	}
	return []kgo.Opt{
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.SessionTimeout(time.Duration(its.Session) * time.Millisecond),
		kgo.HeartbeatInterval(heartbeatTime),
	}
}

func (its *member) process(made *kgo.Client, found kgo.Fetches) {
	for _, each := range found.Errors() {
		if !errors.Is(each.Err, context.DeadlineExceeded) && !errors.Is(each.Err, context.Canceled) {
			its.note("error", each.Err.Error())
		}
	}
	_, epoch := made.GroupMetadata()
	found.EachPartition(func(place kgo.FetchTopicPartition) {
		if len(place.Records) == 0 {
			return
		}
		offsets := make([]string, len(place.Records))
		for at, record := range place.Records {
			offsets[at] = fmt.Sprint(record.Offset)
		}
		its.note("read", fmt.Sprintf("%d %d %s", epoch, place.Partition, strings.Join(offsets, ",")))
	})
	if found.NumRecords() == 0 {
		return
	}
	limited, cancel := context.WithTimeout(context.Background(), commitTime)
	defer cancel()
	if err := made.CommitUncommittedOffsets(limited); err != nil {
		its.note("error", err.Error())
	}
}

func listed(partitions []int32) string {
	sort.Slice(partitions, func(a, b int) bool { return partitions[a] < partitions[b] })
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(partitions), " ", ","), "[]")
}
