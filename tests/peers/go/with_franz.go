package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type franz struct {
	topic   string
	options []kgo.Opt
	writer  *kgo.Client
}

func (one *Case) openFranz() (client, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(one.Broker),
		kgo.RequestRetries(2),
		kgo.RetryTimeout(8 * time.Second),
		kgo.RecordDeliveryTimeout(8 * time.Second),
	}
	secure, err := one.tls()
	if err != nil {
		return nil, err
	}
	if secure != nil {
		options = append(options, kgo.DialTLSConfig(secure))
	}
	if one.Mechanism != "" {
		mechanism, err := one.mechanismOfFranz()
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.SASL(mechanism))
	}
	writer, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	return &franz{one.Topic, options, writer}, nil
}

func (one *Case) mechanismOfFranz() (sasl.Mechanism, error) {
	keys := scram.Auth{User: one.User, Pass: one.Password}
	switch one.Mechanism {
	case "PLAIN":
		return plain.Auth{User: one.User, Pass: one.Password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return keys.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return keys.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Auth{Token: one.Token}.AsMechanism(), nil
	}
	return nil, fmt.Errorf("franz-go has no mechanism %s", one.Mechanism)
}

func (its *franz) write(ctx context.Context, value []byte) error {
	return its.writer.ProduceSync(ctx, &kgo.Record{Topic: its.topic, Value: value}).FirstErr()
}

func (its *franz) read(ctx context.Context, wanted int) (int, error) {
	reader, err := kgo.NewClient(append(its.options,
		kgo.ConsumerGroup("go-"+its.topic),
		kgo.ConsumeTopics(its.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)...)
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	count := 0
	for count < wanted && ctx.Err() == nil {
		found := reader.PollFetches(ctx)
		if err := found.Err(); err != nil {
			return count, err
		}
		count += found.NumRecords()
	}
	return count, reader.CommitUncommittedOffsets(ctx)
}

func (its *franz) close() {
	its.writer.Close()
}
