// Flow makes thumbnails of the images of an album, a cover of the first of them, and publishes the
// album when all that has ended. One image is broken. The album is published without it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// album returns the flow of an album.
func album(id string, images ...string) *delayq.Flow {
	f := delayq.NewFlow("album:publish", id, nil, delayq.Retry(3)).IgnoreFailures().Deadline(time.Hour)
	for i, image := range images {
		thumbnail := f.AddJob("thumbnail", id+"/"+image, []byte(image), delayq.Retry(2), delayq.ProcessIn(time.Duration(i)*time.Minute))
		if i == 0 {
			f.AddJob("cover", id, nil).After(thumbnail)
		}
	}
	return f
}

func handlers(s *delayq.Server) {
	s.HandlerFunc("thumbnail", func(_ context.Context, job *delayq.Job) error {
		if string(job.Payload) == "torn.jpg" {
			return delayq.Permanent(errors.New("unexpected end of the image"))
		}
		return job.SetOutput(append(job.Payload, ".webp"...))
	}, delayq.Concurrency(1))
	s.HandlerFunc("cover", func(ctx context.Context, job *delayq.Job) error {
		before, err := job.Inputs(ctx)
		if err != nil {
			return err
		}
		return job.SetOutput([]byte("cover of " + string(before[0].Output)))
	}, delayq.Concurrency(1))
	s.HandlerFunc("album:publish", func(ctx context.Context, job *delayq.Job) error {
		steps, err := job.Inputs(ctx)
		if err != nil {
			return err
		}
		fmt.Println("publish", job.ID)
		for _, step := range steps {
			fmt.Println(" ", step.ID, step.State, string(step.Output), step.Error)
		}
		return nil
	}, delayq.Concurrency(1))
}

func main() {
	ctx := context.Background()
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	check(q.Advance(ctx, 0)) // from here on the clock stands still but for Advance and RunFlow
	_, err = q.Serve(handlers, delayq.Logger(slog.New(slog.DiscardHandler)))
	check(err)
	_, err = q.Client.Start(ctx, album("album-7", "sea.jpg", "torn.jpg", "hut.jpg", "cat.jpg"))
	check(err)
	for range 3 {
		check(q.Advance(ctx, 50*time.Second))
		info, err := q.Inspector.Flow(ctx, "album:publish", "album-7")
		check(err)
		fmt.Printf("%d of %d, %d failed\n", info.Total-info.Left, info.Total, info.Failed)
	}
	check(q.RunFlow(ctx, "album:publish", "album-7"))
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
