package main

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

type kafkaGo struct {
	reads  kafka.ReaderConfig
	writer *kafka.Writer
}

func (one *Case) openKafkaGo() (client, error) {
	secure, err := one.tls()
	if err != nil {
		return nil, err
	}
	mechanism, err := one.mechanismOfKafkaGo()
	if err != nil {
		return nil, err
	}
	reads := kafka.ReaderConfig{
		Brokers:        []string{one.Broker},
		Topic:          one.Topic,
		GroupID:        "go-" + one.Topic,
		StartOffset:    kafka.FirstOffset,
		MaxWait:        200 * time.Millisecond,
		Dialer:         &kafka.Dialer{Timeout: 8 * time.Second, TLS: secure, SASLMechanism: mechanism},
		IsolationLevel: kafka.ReadCommitted,
	}
	writer := &kafka.Writer{
		Addr:         kafka.TCP(one.Broker),
		Topic:        one.Topic,
		MaxAttempts:  3,
		BatchTimeout: 5 * time.Millisecond,
		RequiredAcks: kafka.RequireAll,
		Transport:    &kafka.Transport{TLS: secure, SASL: mechanism, DialTimeout: 8 * time.Second},
	}
	return &kafkaGo{reads, writer}, nil
}

func (one *Case) mechanismOfKafkaGo() (sasl.Mechanism, error) {
	switch one.Mechanism {
	case "":
		return nil, nil
	case "PLAIN":
		return plain.Mechanism{Username: one.User, Password: one.Password}, nil
	case "SCRAM-SHA-256":
		return scram.Mechanism(scram.SHA256, one.User, one.Password)
	case "SCRAM-SHA-512":
		return scram.Mechanism(scram.SHA512, one.User, one.Password)
	}
	return nil, errors.New("kafka-go has no mechanism " + one.Mechanism)
}

func (its *kafkaGo) write(ctx context.Context, value []byte) error {
	return its.writer.WriteMessages(ctx, kafka.Message{Value: value})
}

func (its *kafkaGo) read(ctx context.Context, wanted int) (int, error) {
	reader := kafka.NewReader(its.reads)
	defer reader.Close()
	for count := range wanted {
		if _, err := reader.ReadMessage(ctx); err != nil {
			return count, err
		}
	}
	return wanted, nil
}

func (its *kafkaGo) close() {
	_ = its.writer.Close()
}
