// A controller as people write them: one of several candidates that elect a leader with client-go on a Lease. The
// leader writes through the gate, with the uid and the leaseTransitions of its own Lease as the fence token. One line
// of JSON on standard output for everything that happens; client-go's own log goes to standard error.
//
// scripts/kube-apiserver builds it, with the client-go of the same source.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// Exit codes, beside 0 for a stop by SIGTERM and 2 for bad arguments.
const lostLeadership = 3

var (
	server        = flag.String("server", "", "url of the API server")
	ca            = flag.String("ca", "", "file of the authority that signed its certificate; none for plain http")
	tokenFile     = flag.String("token-file", "", "file with the bearer token")
	namespace     = flag.String("namespace", "", "namespace of the Lease")
	name          = flag.String("name", "", "name of the Lease")
	identity      = flag.String("identity", "", "who this is; another for every process")
	leaseDuration = flag.Duration("lease-duration", 15*time.Second, "whole seconds until others may take over")
	renewDeadline = flag.Duration("renew-deadline", 10*time.Second, "the leader gives up after so long without renewal")
	retryPeriod   = flag.Duration("retry-period", 2*time.Second, "between two tries to take or renew")
	release       = flag.Bool("release-on-cancel", false, "give the Lease back on SIGTERM")
	gate          = flag.String("gate", "", "url of the gate")
	path          = flag.String("path", "", "path of what is written")
	every         = flag.Duration("every", 100*time.Millisecond, "between two writes")
	stay          = flag.Bool("stay", false, "stand again after leadership was lost, and do not exit")
)

// event is one line; what does not belong to its kind stays out.
type event struct {
	Event      string `json:"event"`
	Identity   string `json:"identity"`
	Leader     string `json:"leader,omitempty"`
	Token      string `json:"token,omitempty"`
	Number     int    `json:"number,omitempty"`
	Status     int    `json:"status,omitempty"`
	FenceError string `json:"fence_error,omitempty"`
	Message    string `json:"message,omitempty"`
}

var output sync.Mutex

func say(e event) {
	e.Identity = *identity
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	if _, err := fmt.Fprintf(os.Stdout, "%s\n", line); err != nil {
		os.Exit(1) // The reader is gone.
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "candidate: "+why)
	os.Exit(2)
}

func checkFlags() {
	for _, needed := range []string{"server", "token-file", "namespace", "name", "identity", "gate", "path"} {
		if flag.Lookup(needed).Value.String() == "" {
			fail("--" + needed + " is missing")
		}
	}
	if *leaseDuration < time.Second || *leaseDuration%time.Second != 0 {
		fail("--lease-duration is not a whole number of seconds: a Lease holds no other")
	}
	if !strings.HasPrefix(*path, "/") {
		fail("--path does not begin with /")
	}
	if flag.NArg() > 0 {
		fail("what is " + flag.Arg(0) + "?")
	}
}

// writer is what this controller does while it leads.
type writer struct {
	client kubernetes.Interface
	http   *http.Client
	number int
	// Held by the write on its way, and for ever by stop.
	writes  sync.Mutex
	stopped chan struct{}
}

// stop lets the write on its way end, and none begin.
func (w *writer) stop() {
	close(w.stopped)
	w.writes.Lock()
}

// token reads what this leader shows the gate from its own Lease; empty where the Lease is another's by now.
func (w *writer) token(ctx context.Context) (string, error) {
	lease, err := w.client.CoordinationV1().Leases(*namespace).Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity != *identity {
		return "", nil
	}
	transitions := int32(0)
	if spec.LeaseTransitions != nil {
		transitions = *spec.LeaseTransitions
	}
	return fmt.Sprintf("k8s.%s.%d", lease.UID, transitions), nil
}

// lead writes until it is stopped (the process ends in good order) or leadership is gone. In the second case one
// more write goes out: a process that was stopped, or whose clock is slow, has always one that it decided on before it
// could know. That is the write which a gate is for.
func (w *writer) lead(leads context.Context) {
	token := ""
	for token == "" {
		var err error
		if token, err = w.token(leads); err != nil {
			say(event{Event: "error", Message: err.Error()})
		}
		if token == "" {
			select {
			case <-leads.Done():
				return
			case <-w.stopped:
				return
			case <-time.After(*retryPeriod):
			}
		}
	}
	say(event{Event: "leading", Token: token})
	ticks := time.NewTicker(*every)
	defer ticks.Stop()
	for {
		select {
		case <-w.stopped:
			return
		case <-ticks.C:
		case <-leads.Done():
		}
		w.writes.Lock()
		refused := w.write(token)
		w.writes.Unlock()
		if leads.Err() != nil {
			return
		}
		if refused {
			// If the Lease was deleted, client-go has made another one, and goes on leading with that.
			if now, err := w.token(leads); err == nil && now != "" && now != token {
				token = now
				say(event{Event: "leading", Token: token})
			}
		}
	}
}

// write sends the next number, and says whether the gate refused its token.
func (w *writer) write(token string) bool {
	w.number++
	body := strings.NewReader(fmt.Sprintf("%s %d", *identity, w.number))
	request, err := http.NewRequest(http.MethodPut, *gate+*path, body)
	if err != nil {
		fail(err.Error())
	}
	request.Header.Set("Fence-Token", token)
	answer, err := w.http.Do(request)
	if err != nil {
		say(event{Event: "error", Token: token, Number: w.number, Message: err.Error()})
		return false
	}
	defer answer.Body.Close()
	// All of it, so that the gate never sees a writer that hung up.
	_, _ = io.Copy(io.Discard, answer.Body)
	code := answer.Header.Get("Fence-Error")
	say(event{Event: "answer", Token: token, Number: w.number, Status: answer.StatusCode, FenceError: code})
	return code != ""
}

func main() {
	klog.InitFlags(nil)
	flag.Parse()
	checkFlags()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: *server, BearerTokenFile: *tokenFile, TLSClientConfig: rest.TLSClientConfig{CAFile: *ca},
		QPS: 1000, Burst: 1000,
	})
	if err != nil {
		fail(err.Error())
	}
	// A connection for every write: one that was open while the process stood still would say more than the write.
	w := &writer{client: client, stopped: make(chan struct{}), http: &http.Client{
		Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true},
	}}

	// On SIGTERM the writes end first, and only then may the Lease go.
	ctx, cancel := context.WithCancel(context.Background())
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, os.Interrupt)
	go func() {
		<-terminated
		w.stop()
		cancel()
	}()

	for ctx.Err() == nil {
		run(ctx, w)
		if ctx.Err() == nil && !*stay {
			os.Exit(lostLeadership)
		}
	}
	say(event{Event: "stopped"})
}

// run stands for election, leads, and returns when leadership is over.
func run(ctx context.Context, w *writer) {
	done := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *name},
			Client:     w.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
		},
		LeaseDuration: *leaseDuration, RenewDeadline: *renewDeadline, RetryPeriod: *retryPeriod,
		ReleaseOnCancel: *release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leads context.Context) {
				defer close(done)
				w.lead(leads)
			},
			OnStoppedLeading: func() {}, // Run returns, and that says it.
			OnNewLeader:      func(leader string) { say(event{Event: "leader", Leader: leader}) },
		},
	})
	if err != nil {
		fail(err.Error())
	}
	elector.Run(ctx)
	// A process that is being stopped writes no more, and may never have led.
	if ctx.Err() == nil {
		<-done
		say(event{Event: "lost"})
	}
}
