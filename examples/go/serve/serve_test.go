package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"segno"
)

const (
	modelPath = "../../models/shakespeare.gguf"
	clients   = 16
	prompt    = "ROMEO:" // 3 tokens with the one that begins a text
	tokens    = 200
)

// begin starts a service; the pool holds `capacity` tokens.
func begin(t *testing.T, slots, capacity, queue int) (*scheduler, string) {
	t.Helper()
	device, err := segno.NewContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	model, err := device.LoadModel(context.Background(), modelPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newScheduler(model, slots, capacity, queue)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.run(ctx) }()
	server := httptest.NewServer(s.handler())
	t.Cleanup(func() {
		server.Close()
		stop()
		if err := <-ended; err != context.Canceled {
			t.Error(err)
		}
		model.Close()
		device.Close()
	})
	return s, server.URL
}

func post(ctx context.Context, url, prompt string, limit, seed int) (*http.Response, error) {
	body, _ := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": limit, "seed": seed})
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/generate", strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(r)
}

// listen reads one stream, at most `most` tokens of it, then hangs up. It returns the tokens and the reason of the end.
func listen(url string, seed, limit, most int) (got []int32, end string, err error) {
	ctx, hangUp := context.WithCancel(context.Background())
	defer hangUp()
	response, err := post(ctx, url, prompt, limit, seed)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("status %s", response.Status)
	}
	lines := bufio.NewScanner(response.Body)
	ending := false
	for len(got) < most && lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case lines.Text() == "event: end":
			ending = true
		case isData && ending:
			return got, data, nil
		case isData:
			var p piece
			if err := json.Unmarshal([]byte(data), &p); err != nil {
				return got, "", err
			}
			if p.Token >= 0 {
				got = append(got, p.Token)
			}
		}
	}
	return got, "hung up", lines.Err()
}

// crowd listens to all streams at once; client i hangs up after most(i) tokens.
func crowd(t *testing.T, url string, most func(int) int) [clients][]int32 {
	t.Helper()
	var got [clients][]int32
	var wait sync.WaitGroup
	for i := range clients {
		wait.Add(1)
		go func() {
			defer wait.Done()
			var end string
			var err error
			if got[i], end, err = listen(url, i, tokens, most(i)); err != nil || (most(i) > tokens) != (end == "length") {
				t.Error(i, end, err)
			}
		}()
	}
	wait.Wait()
	return got
}

func alone(t *testing.T, url string) (want [clients][]int32) {
	t.Helper()
	for i := range clients {
		var err error
		if want[i], _, err = listen(url, i, tokens, tokens+1); err != nil || len(want[i]) != tokens {
			t.Fatal(i, len(want[i]), err)
		}
	}
	return want
}

// idle waits until no stream runs and no request waits.
func idle(t *testing.T, s *scheduler) {
	t.Helper()
	busy := func() bool { return s.running.Load() != 0 || s.reserved.Load() != 0 || len(s.queue) != 0 }
	for deadline := time.Now().Add(10 * time.Second); busy(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(s.running.Load(), "streams still run and hold", s.reserved.Load(), "and there wait", len(s.queue))
		}
	}
}

func TestSixteenStreamsGetTheTokensOfEachAlone(t *testing.T) {
	s, url := begin(t, clients, clients*(3+tokens), clients)
	want := alone(t, url)
	got := crowd(t, url, func(int) int { return tokens + 1 })
	for i := range clients {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("client %d\n%v\n%v", i, got[i], want[i])
		}
	}
	idle(t, s)
}

func TestClientsWhoLeaveFreeTheirPagesAndDisturbNobody(t *testing.T) {
	// The pool holds exactly what sixteen streams need: a page that is not given back would be missed in the second round.
	s, url := begin(t, clients, clients*(3+tokens), clients)
	want := alone(t, url)
	for round := range 2 {
		got := crowd(t, url, func(i int) int {
			if i%2 == 1 {
				return 3 + i
			}
			return tokens + 1
		})
		for i := range clients {
			if i%2 == 0 && !reflect.DeepEqual(got[i], want[i]) {
				t.Errorf("round %d: client %d got other tokens", round, i)
			}
			if i%2 == 1 && !reflect.DeepEqual(got[i], want[i][:3+i]) {
				t.Errorf("round %d: client %d, who left, got other tokens", round, i)
			}
		}
		idle(t, s)
	}
	if s.cancelled.Load() != clients {
		t.Error(s.cancelled.Load(), "streams were cancelled")
	}
	got := crowd(t, url, func(int) int { return tokens + 1 })
	if !reflect.DeepEqual(got, want) {
		t.Error("after the others had left, streams got other tokens")
	}
}

func TestAFullServiceAsksClientsToComeBack(t *testing.T) {
	s, url := begin(t, 2, 420, 1)
	ctx, hangUp := context.WithCancel(context.Background())
	defer hangUp()
	// The first takes nearly the whole pool, so the second must wait although a sequence is free.
	statuses := map[int]int{}
	for i := 0; i < 50 && statuses[http.StatusServiceUnavailable] == 0; i++ {
		response, err := post(ctx, url, prompt, 400, i)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		statuses[response.StatusCode]++
		if response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		if running := s.running.Load(); running > 1 {
			t.Error(running, "streams share a pool for one")
		}
	}
	if statuses[http.StatusServiceUnavailable] == 0 || statuses[http.StatusOK] < 2 {
		t.Fatal(statuses)
	}
	hangUp()
	idle(t, s)
	if _, end, err := listen(url, 1, 400, 401); err != nil || end != "length" {
		t.Fatal("the service does not go on:", end, err)
	}
}

func TestARunningStreamNeverMeetsAFullPool(t *testing.T) {
	s, url := begin(t, 3, 420, 3)
	var wait sync.WaitGroup
	for seed := range 3 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			if got, end, err := listen(url, seed, 400, 401); err != nil || end != "length" || len(got) != 400 {
				t.Error(seed, len(got), end, err)
			}
		}()
	}
	wait.Wait()
	idle(t, s)
}

func TestWhatCannotBeServedIsRefused(t *testing.T) {
	_, url := begin(t, 2, 300, 4)
	for body, status := range map[string]int{
		`{`:                                  http.StatusBadRequest,
		`{"prompt": "x", "max_tokens": 0}`:   http.StatusBadRequest,
		`{"prompt": "x", "max_tokens": 301}`: http.StatusBadRequest,
		`{"prompt": "x", "max_tokens": 300}`: http.StatusRequestEntityTooLarge,
		`{"prompt": "x", "max_tokens": 2}`:   http.StatusOK,
	} {
		response, err := http.Post(url+"/generate", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != status {
			t.Error(body, response.Status)
		}
	}
	response, err := http.Get(url + "/stats")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var stats map[string]int
	if err := json.NewDecoder(response.Body).Decode(&stats); err != nil || stats["kv_capacity"] != 300 {
		t.Fatal(stats, err)
	}
}
