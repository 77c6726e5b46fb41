// A service for a webhook rule of a PodTransitionRule, using only Go's standard library. It responds
// with a task to each request, and all Pods of the task pass two seconds later.
// Usage: go run webhook.go 127.0.0.1:9000
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"
)

type question struct{ Resources []struct{ Name string } }

// begin responds with a task, whose ID is the time at which it ends.
func begin(w http.ResponseWriter, r *http.Request) {
	var asked question
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&asked); err != nil {
		http.Error(w, "not a question about Pods", http.StatusBadRequest)
		return
	}
	log.Printf("asked about %d Pods", len(asked.Resources))
	ends := time.Now().Add(2 * time.Second).UnixNano()
	answer(w, map[string]any{"success": true, "poll": true, "taskId": fmt.Sprint(ends)})
}

// progress reports whether a task has ended.
func progress(w http.ResponseWriter, r *http.Request) {
	var ends int64
	if _, err := fmt.Sscan(r.URL.Query().Get("task-id"), &ends); err != nil {
		answer(w, map[string]any{"success": false, "stop": true, "message": "no such task"})
		return
	}
	answer(w, map[string]any{"success": true, "finished": time.Now().UnixNano() >= ends})
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(body)
}

func main() {
	http.HandleFunc("POST /", begin)
	http.HandleFunc("GET /", progress)
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
