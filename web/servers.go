package web

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/delayq/delayq"
)

type serverRow struct {
	ID      string             `json:"id"`
	Host    string             `json:"host"`
	PID     int                `json:"pid"`
	State   delayq.ServerState `json:"state"`
	Version string             `json:"version"`
	Started time.Time          `json:"started_at"`
	Seen    time.Time          `json:"seen_at"`
	Workers int                `json:"workers"`
	Running int                `json:"running"`
	Topics  []serverTopic      `json:"topics"`
}

type serverTopic struct {
	Topic   string       `json:"topic"`
	Workers int          `json:"workers"`
	Running int          `json:"running"`
	Taken   float64      `json:"taken_per_second"`
	Loops   []loopRow    `json:"loops"`
	Longest []longestRow `json:"longest,omitempty"`
}

type loopRow struct {
	Name string  `json:"name"`
	Age  float64 `json:"age_seconds"`
}

// Long returns the age of the last iteration.
func (l loopRow) Long() time.Duration { return time.Duration(l.Age * float64(time.Second)) }

type longestRow struct {
	ID    string    `json:"id"`
	Since time.Time `json:"since"`
}

type serversPage struct {
	Schema  string      `json:"schema"`
	Servers []serverRow `json:"servers"`
	Mixed   bool        `json:"mixed_versions"`
}

func (h *Handler) servers(v *view) (any, error) {
	list, err := read(h, v.Request.Context(), "servers", func(ctx context.Context) ([]delayq.ServerInfo, error) {
		return h.insp.Servers(ctx)
	})
	if err != nil {
		return nil, err
	}
	p := &serversPage{Schema: "delayq.web.servers/1", Servers: []serverRow{}}
	versions := make(map[string]bool)
	for _, s := range list {
		r := serverRow{
			ID: s.ID, Host: s.Host, PID: s.PID, State: s.State, Version: s.Version, Started: utc(s.StartedAt), Seen: utc(s.SeenAt), Topics: []serverTopic{},
		}
		if s.SeenAt.After(v.Now) || len(p.Servers) == 0 {
			v.Now = s.SeenAt
		}
		versions[s.Version] = true
		for topic, status := range s.Topics {
			if !h.views(v, topic) {
				continue
			}
			t := serverTopic{Topic: topic, Workers: status.Workers, Running: status.Running}
			if status.Within > 0 {
				t.Taken = float64(status.Taken) / status.Within.Seconds()
			}
			for name, age := range status.Loops {
				t.Loops = append(t.Loops, loopRow{name, age.Seconds()})
			}
			slices.SortFunc(t.Loops, func(a, b loopRow) int { return cmp.Compare(a.Name, b.Name) })
			for _, job := range status.Longest {
				t.Longest = append(t.Longest, longestRow{job.ID, utc(s.SeenAt.Add(-job.Running))})
			}
			r.Workers, r.Running = r.Workers+t.Workers, r.Running+t.Running
			r.Topics = append(r.Topics, t)
		}
		slices.SortFunc(r.Topics, func(a, b serverTopic) int { return cmp.Compare(a.Topic, b.Topic) })
		p.Servers = append(p.Servers, r)
	}
	slices.SortFunc(p.Servers, func(a, b serverRow) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID)) })
	p.Mixed = len(versions) > 1
	return p, nil
}
