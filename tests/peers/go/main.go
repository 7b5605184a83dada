// Command peers runs stock Kafka clients written in Go: franz-go, sarama and kafka-go.
//
//	peers cases FILE    writes and reads with a client for each case of a file
//	peers members FILE  runs members of a group of either protocol with franz-go
//
// Both files are JSON; the types Case and Members are their fields.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: peers cases|members FILE"))
	}
	content, err := os.ReadFile(os.Args[2])
	if err != nil {
		fail(err)
	}
	switch os.Args[1] {
	case "cases":
		var cases []Case
		if err := json.Unmarshal(content, &cases); err != nil {
			fail(err)
		}
		runCases(cases)
	case "members":
		var members Members
		if err := json.Unmarshal(content, &members); err != nil {
			fail(err)
		}
		members.run()
	default:
		fail(fmt.Errorf("unknown command %s: use cases or members", os.Args[1]))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
