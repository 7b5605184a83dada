package main

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type ofSarama struct {
	topic  string
	broker []string
	config *sarama.Config
	writer sarama.SyncProducer
}

func (one *Case) openSarama() (client, error) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Net.DialTimeout, config.Net.ReadTimeout = 8*time.Second, 8*time.Second
	config.Metadata.Retry.Max = 1
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	secure, err := one.tls()
	if err != nil {
		return nil, err
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = secure != nil, secure
	if one.Mechanism != "" {
		one.loginOfSarama(config)
	}
	brokers := []string{one.Broker}
	writer, err := sarama.NewSyncProducer(brokers, config)
	if err != nil {
		return nil, err
	}
	return &ofSarama{one.Topic, brokers, config, writer}, nil
}

func (one *Case) loginOfSarama(config *sarama.Config) {
	login := &config.Net.SASL
	login.Enable = true
	login.Mechanism = sarama.SASLMechanism(one.Mechanism)
	login.User, login.Password = one.User, one.Password
	switch one.Mechanism {
	case sarama.SASLTypeSCRAMSHA256:
		login.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: sha256.New} }
	case sarama.SASLTypeSCRAMSHA512:
		login.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: sha512.New} }
	case sarama.SASLTypeOAuth:
		login.TokenProvider = token(one.Token)
	}
}

// token is sarama's provider of one token.
type token string

func (its token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(its)}, nil
}

// exchange is the SCRAM of another library, as sarama's examples have it.
type exchange struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (its *exchange) Begin(user, password, authorized string) error {
	made, err := its.hash.NewClient(user, password, authorized)
	if err != nil {
		return err
	}
	its.ClientConversation = made.NewConversation()
	return nil
}

func (its *ofSarama) write(_ context.Context, value []byte) error {
	message := &sarama.ProducerMessage{Topic: its.topic, Value: sarama.ByteEncoder(value)}
	_, _, err := its.writer.SendMessage(message)
	return err
}

func (its *ofSarama) read(ctx context.Context, wanted int) (int, error) {
	group, err := sarama.NewConsumerGroup(its.broker, "go-"+its.topic, its.config)
	if err != nil {
		return 0, err
	}
	defer group.Close()
	limited, enough := context.WithCancel(ctx)
	defer enough()
	reader := &handler{wanted: wanted, enough: enough}
	for limited.Err() == nil {
		if err := group.Consume(limited, []string{its.topic}, reader); err != nil {
			return reader.count, err
		}
	}
	return reader.count, nil
}

func (its *ofSarama) close() {
	_ = its.writer.Close()
}

// handler counts the records of a topic with one partition.
type handler struct {
	wanted, count int
	enough        func()
}

func (*handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (its *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		its.count++
		if its.count == its.wanted {
			its.enough()
		}
	}
	return nil
}
