experiment "latency" {
  matrix {
    rules      = var.sizes
    frame_size = [64]
  }
  repetitions = var.repetitions
}
