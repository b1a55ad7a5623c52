// Package segno runs language models (GGUF files) inside a Go program, through the shared library of the same name.
//
//	ctx, err := segno.NewContext(nil)                        // the device and its threads
//	model, err := ctx.LoadModel(context.Background(), path, nil)
//	session, err := model.NewSession(nil)                    // all memory is taken here
//	seq, err := session.Open(nil)
//	err = seq.Append(prompt)
//	for piece, err := range seq.Generate(request, segno.GenerateOptions{MaxTokens: 100}) { ... }
//
// # Building
//
// The package finds the library through pkg-config; set PKG_CONFIG_PATH when it is installed in a prefix of its own. With the build
// tag segno_static the library becomes part of the program. Go's build cache does not notice that pkg-config answers differently, or that the
// static library has changed: build once with the flag -a after that.
//
// # Threads
//
// Every method may be called from any goroutine. Calls on one [Session], one [Chat] or one [Text] wait for each other, but for Stats and Len, which tell
// figures beside a running call; calls on a [Context] or [Model] run at once. A context.Context ends a running call within a fraction of a
// pass, and the sequences are then as they were before it.
//
// # Closing
//
// Objects may be closed in any order, and more than once. Close waits for calls that run; a call after it fails with [ErrClosed]. An
// object that was never closed is freed some time after it has become unreachable; memory is large here, so do not wait for that.
//
// # Callbacks
//
// A panic in a log or progress function does not cross the library: it is caught, and the call that led to it, or the next call on any
// object made from the same context, returns it as a [*PanicError].
package segno
