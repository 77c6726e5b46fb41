// A service for a webhook rule of a PodTransitionRule, with Go's standard library alone. It names a
// task for each question, and tells how far the task is when asked again: each Pod passes two seconds
// after it was asked about. Try it: go run webhook.go 127.0.0.1:9000
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	work = 2 * time.Second  // what a Pod takes
	keep = 10 * time.Minute // how long a task is remembered
)

type task struct {
	pods  []string
	asked time.Time
}

type service struct {
	sync.Mutex
	tasks map[string]task
}

// begin names a task for the Pods that are asked about.
func (s *service) begin(w http.ResponseWriter, r *http.Request) {
	var question struct {
		Resources []struct{ Name string }
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&question); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	now := time.Now()
	begun := task{pods: []string{}, asked: now}
	for _, pod := range question.Resources {
		begun.pods = append(begun.pods, pod.Name)
	}
	s.Lock()
	defer s.Unlock()
	for id, old := range s.tasks {
		if now.Sub(old.asked) > keep {
			delete(s.tasks, id)
		}
	}
	id := strconv.FormatInt(now.UnixNano(), 36)
	s.tasks[id] = begun
	answer(w, map[string]any{"success": true, "poll": true, "taskId": id})
}

// progress tells how far a task has come; one that is not known is to be asked anew.
func (s *service) progress(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	known, ok := s.tasks[r.URL.Query().Get("task-id")]
	s.Unlock()
	switch {
	case !ok:
		answer(w, map[string]any{"success": false, "stop": true, "message": "no such task"})
	case time.Since(known.asked) < work:
		answer(w, map[string]any{"success": true, "finished": false, "finishedNames": []string{}})
	default:
		answer(w, map[string]any{"success": true, "finished": true, "finishedNames": known.pods})
	}
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		log.Print(err)
	}
}

func main() {
	s := &service{tasks: map[string]task{}}
	http.HandleFunc("POST /", s.begin)
	http.HandleFunc("GET /", s.progress)
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
