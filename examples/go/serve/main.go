// Serve answers HTTP clients with server-sent events, all of them at once from one session:
//
//	serve MODEL.gguf [-a ADDRESS] [-c STREAMS] [-k KV TOKENS] [-q QUEUE]
//
//	curl -N localhost:8080/generate -d '{"prompt": "ROMEO:", "max_tokens": 50, "seed": 1}'
//
// Each token is an event `data: {"token": 17, "text": "good"}`; the last one is `event: end` with the reason: length, stop, or an error.
// A client that goes away ends its stream. When all streams are taken or the pool is full, requests wait in a queue of bounded length; when that is
// full too, they are answered 503 with Retry-After. GET /stats tells how things stand.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"segno"
)

// ask is the body of a request; absent fields are the sampler's defaults.
type ask struct {
	Prompt      string   `json:"prompt"`
	MaxTokens   int      `json:"max_tokens"`
	Seed        *uint64  `json:"seed"`
	Temperature *float32 `json:"temperature"`
	Stop        []string `json:"stop"`
}

func (s *scheduler) parse(r *http.Request) (*request, error) {
	a := ask{MaxTokens: 100}
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<20)).Decode(&a); err != nil {
		return nil, err
	}
	if a.MaxTokens < 1 || a.MaxTokens > s.capacity {
		return nil, fmt.Errorf("max_tokens is %d, 1 to %d can be had", a.MaxTokens, s.capacity)
	}
	prompt, err := s.model.Tokenize(a.Prompt, segno.TokenizeOptions{AddSpecial: true})
	if err != nil {
		return nil, err
	}
	req := newRequest(r.Context(), prompt, a.MaxTokens)
	req.stop = a.Stop
	if a.Seed != nil {
		req.sampler.Seed = *a.Seed
	}
	if a.Temperature != nil {
		req.sampler.Temperature = *a.Temperature
	}
	return req, nil
}

func (s *scheduler) handleGenerate(w http.ResponseWriter, r *http.Request) {
	req, err := s.parse(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch err := s.submit(req); {
	case errors.Is(err, errBusy):
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	flush := http.NewResponseController(w)
	flush.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case p := <-req.pieces:
			if p.end != "" {
				fmt.Fprintf(w, "event: end\ndata: %s\n\n", p.end)
				return
			}
			event, err := json.Marshal(p)
			if err != nil {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", event)
			flush.Flush()
		}
	}
}

func (s *scheduler) handleStats(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]int64{"running": s.running.Load(), "waiting": int64(len(s.queue)), "kv_reserved": s.reserved.Load(),
		"kv_capacity": int64(s.capacity), "finished": s.finished.Load(), "cancelled": s.cancelled.Load()})
}

func (s *scheduler) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /generate", s.handleGenerate)
	mux.HandleFunc("GET /stats", s.handleStats)
	return mux
}

// serve answers until ctx ends, then lets go of its clients.
func serve(ctx context.Context, path, address string, slots, capacity, queue int) error {
	device, err := segno.NewContext(&segno.ContextOptions{Log: func(_ segno.LogLevel, line string) { log.Print(line) }})
	if err != nil {
		return err
	}
	defer device.Close()
	model, err := device.LoadModel(ctx, path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	s, err := newScheduler(model, slots, capacity, queue)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: address, Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	ctx, fail := context.WithCancelCause(ctx)
	go func() { fail(server.ListenAndServe()) }()
	log.Printf("listening on %s", address)
	s.run(ctx)
	server.Close()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func main() {
	log.SetFlags(log.Ltime)
	if len(os.Args) < 2 {
		log.Fatal("usage: serve MODEL.gguf [-a ADDRESS] [-c STREAMS] [-k KV TOKENS] [-q QUEUE]")
	}
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	address := flags.String("a", "localhost:8080", "`address` to listen on")
	slots := flags.Int("c", 16, "most `streams` at once")
	capacity := flags.Int("k", 8192, "KV `tokens` of all streams together")
	queue := flags.Int("q", 64, "most `requests` that wait")
	flags.Parse(os.Args[2:])
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := serve(ctx, os.Args[1], *address, *slots, *capacity, *queue); err != nil {
		log.Fatal(err)
	}
}
