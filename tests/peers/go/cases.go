package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
)

const (
	writeTime = 15 * time.Second // of one write, with its retries
	readTime  = 20 * time.Second // of all reads of a case
	pace      = 100 * time.Millisecond
	atOnce    = 4 // cases
)

// A Case is one client with one way to log in.
type Case struct {
	Name      string  `json:"name"`
	Client    string  `json:"client"` // franz-go, sarama or kafka-go
	Broker    string  `json:"broker"`
	Topic     string  `json:"topic"`
	Authority string  `json:"authority"` // a PEM file; empty for plaintext
	Key       string  `json:"key"`       // a PEM file with key and certificate; empty for none
	Mechanism string  `json:"mechanism"` // empty for none
	User      string  `json:"user"`
	Password  string  `json:"password"`
	Token     string  `json:"token"`
	Seconds   float64 `json:"seconds"` // for which it writes; one record if 0
}

// A client writes records, and reads them by a group.
type client interface {
	// write sends one record, and returns after its acknowledgement.
	write(ctx context.Context, value []byte) error
	// read returns how many records it read: `wanted`, or less when the context ends.
	read(ctx context.Context, wanted int) (int, error)
	close()
}

// runCases prints a line for each case: its name, and `read N` or its error.
func runCases(cases []Case) {
	var done sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for _, one := range cases {
		done.Add(1)
		go func() {
			defer done.Done()
			places <- struct{}{}
			count, err := one.run()
			<-places
			if err != nil {
				fmt.Printf("%s: %s\n", one.Name, textOf(err))
			} else {
				fmt.Printf("%s: read %d\n", one.Name, count)
			}
		}()
	}
	done.Wait()
}

func (one *Case) run() (int, error) {
	opened, err := one.open()
	if err != nil {
		return 0, err
	}
	defer opened.close()
	written := 0
	for end := time.Now().Add(time.Duration(one.Seconds * float64(time.Second))); ; time.Sleep(pace) {
		limited, cancel := context.WithTimeout(context.Background(), writeTime)
		err := opened.write(limited, fmt.Appendf(nil, "value %d", written))
		cancel()
		if err != nil {
			return 0, err
		}
		written++
		if time.Now().After(end) {
			break
		}
	}
	limited, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	return opened.read(limited, written)
}

func (one *Case) open() (client, error) {
	switch one.Client {
	case "franz-go":
		return one.openFranz()
	case "sarama":
		return one.openSarama()
	case "kafka-go":
		return one.openKafkaGo()
	}
	return nil, fmt.Errorf("unknown client %s", one.Client)
}

// tls returns the settings of TLS, or nil for plaintext.
func (one *Case) tls() (*tls.Config, error) {
	if one.Authority == "" {
		return nil, nil
	}
	trusted, err := os.ReadFile(one.Authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(trusted) {
		return nil, fmt.Errorf("%s has no certificate", one.Authority)
	}
	if one.Key != "" {
		own, err := tls.LoadX509KeyPair(one.Key, one.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// textOf returns Kafka's code of an error if it has one, else its text in one line.
func textOf(err error) string {
	var ofFranz *kerr.Error
	var ofSarama sarama.KError
	var ofKafkaGo kafka.Error
	var ofWrites kafka.WriteErrors
	switch {
	case errors.As(err, &ofFranz):
		return fmt.Sprintf("code %d", ofFranz.Code)
	case errors.As(err, &ofSarama):
		return fmt.Sprintf("code %d", int16(ofSarama))
	case errors.As(err, &ofKafkaGo):
		return fmt.Sprintf("code %d", int(ofKafkaGo))
	case errors.As(err, &ofWrites):
		for _, each := range ofWrites {
			if each != nil {
				return textOf(each)
			}
		}
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}
