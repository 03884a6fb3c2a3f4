package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const (
	schemaServer  = "delayq.server/1"
	schemaServers = "delayq.servers/1"
)

// A serverRecord is a live server.
type serverRecord struct {
	ID      string              `json:"id"`
	State   delayq.ServerState  `json:"state"`
	Host    string              `json:"host,omitempty"`
	PID     int                 `json:"pid"`
	Version string              `json:"version,omitempty"`
	Started stamp               `json:"started,omitzero"`
	Seen    stamp               `json:"seen"`
	Workers int                 `json:"workers"`
	Running int                 `json:"running"`
	Topics  []serverTopicRecord `json:"topics"`
}

// A serverTopicRecord is what a server does for a topic.
type serverTopicRecord struct {
	Topic   string             `json:"topic"`
	Workers int                `json:"workers"`
	Batch   int                `json:"batch_size,omitempty"` // of a batch handler
	Running int                `json:"running"`
	Longest []runningRecord    `json:"longest,omitempty"`
	Loops   map[string]seconds `json:"loops,omitempty"` // time since the last iteration
}

// A runningRecord is a job that a server runs.
type runningRecord struct {
	ID       string  `json:"id"`
	IDBase64 []byte  `json:"id_base64,omitempty"`
	For      seconds `json:"for"`
}

func serverOf(s *delayq.ServerInfo) *serverRecord {
	r := &serverRecord{
		ID: s.ID, State: s.State, Host: s.Host, PID: s.PID, Version: s.Version, Started: stamp(s.StartedAt), Seen: stamp(s.SeenAt),
		Topics: []serverTopicRecord{},
	}
	for _, name := range slices.Sorted(maps.Keys(s.Topics)) {
		status := s.Topics[name]
		t := serverTopicRecord{Topic: name, Workers: status.Workers, Batch: status.BatchSize, Running: status.Running}
		for _, job := range status.Longest {
			ref := refOf(name, job.ID)
			t.Longest = append(t.Longest, runningRecord{ref.ID, ref.IDBase64, seconds(job.Running)})
		}
		if len(status.Loops) > 0 {
			t.Loops = map[string]seconds{}
		}
		for loop, age := range status.Loops {
			t.Loops[loop] = seconds(age)
		}
		r.Workers += t.Workers
		r.Running += t.Running
		r.Topics = append(r.Topics, t)
	}
	return r
}

func (a *app) servers(cmd *cobra.Command) ([]*serverRecord, error) {
	insp, err := a.inspector()
	if err != nil {
		return nil, err
	}
	found, err := insp.Servers(cmd.Context())
	if err != nil {
		return nil, err
	}
	list := make([]*serverRecord, len(found))
	for i := range found {
		list[i] = serverOf(&found[i])
	}
	slices.SortFunc(list, func(x, y *serverRecord) int { return strings.Compare(x.ID, y.ID) })
	if len(list) > 0 && a.tabular() {
		_, err = a.now(cmd.Context())
	}
	return list, err
}

func (a *app) serversCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "servers",
		Short:             "List the servers that are alive",
		Long:              "List the servers that have sent a heartbeat within the last 30s.",
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.servers(cmd)
			if err != nil {
				return err
			}
			err = all(a, view[*serverRecord]{schemaServer, schemaServers, "servers", []column[*serverRecord]{
				{head: "ID", cell: func(r *serverRecord) string { return r.ID }},
				{head: "HOST", cell: func(r *serverRecord) string { return orDash(r.Host) }},
				{head: "PID", cell: func(r *serverRecord) string { return strconv.Itoa(r.PID) }, right: true},
				{head: "TOPICS", cell: func(r *serverRecord) string { return strconv.Itoa(len(r.Topics)) }, right: true},
				{head: "RUNNING", cell: func(r *serverRecord) string { return number(r.Running) + "/" + number(r.Workers) }, right: true},
				{head: "STARTED", cell: func(r *serverRecord) string { return a.when(time.Time(r.Started)) }},
				{head: "SEEN", cell: func(r *serverRecord) string { return a.ago(time.Time(r.Seen)) }},
				{head: "VERSION", cell: func(r *serverRecord) string { return orDash(r.Version) }, wide: true},
				{head: "STATE", cell: func(r *serverRecord) string { return string(r.State) }},
			}, func(r *serverRecord) string { return r.ID }, nil}, list, nil)
			if err == nil && len(list) == 0 && a.tabular() {
				a.say("no live servers with the prefix %q", a.prefix)
			}
			return err
		},
	}
}

func (a *app) serverCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "server ID",
		Short:             "Show a server and what it runs",
		Args:              counted(1, 1, "the ID of a server"),
		ValidArgsFunction: a.completeArgs(a.serverIDs, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := a.servers(cmd)
			if err != nil {
				return err
			}
			for _, r := range list {
				if r.ID == args[0] {
					return object(a, schemaServer, r, r.ID, func(w io.Writer) error { return a.showServer(w, r) })
				}
			}
			return fmt.Errorf("server %q: %w", args[0], delayq.ErrNotFound)
		},
	}
}

// showServer writes a server for people.
func (a *app) showServer(w io.Writer, r *serverRecord) error {
	err := a.fields(w,
		"id", r.ID, "state", string(r.State), "host", r.Host, "pid", strconv.Itoa(r.PID), "version", r.Version,
		"started", a.when(time.Time(r.Started)), "seen", a.ago(time.Time(r.Seen)), "running", number(r.Running)+"/"+number(r.Workers),
	)
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	t := &table{a: a, heads: []string{"TOPIC", "RUNNING", "LONGEST", "LOOPS"}, right: []bool{false, true, false, false}}
	for _, topic := range r.Topics {
		var longest, loops []string
		for _, job := range topic.Longest {
			ref := jobRef{ID: job.ID, IDBase64: job.IDBase64}
			longest = append(longest, idText(ref.exact())+" "+span(time.Duration(job.For)))
		}
		for _, name := range slices.Sorted(maps.Keys(topic.Loops)) {
			loops = append(loops, name+" "+span(time.Duration(topic.Loops[name])))
		}
		err := t.add([]string{topic.Topic, number(topic.Running) + "/" + number(topic.Workers), orDash(strings.Join(longest, ", ")), orDash(strings.Join(loops, ", "))})
		if err != nil {
			return err
		}
	}
	return t.end()
}
