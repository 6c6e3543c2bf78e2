"""What the machine holds and takes, from segments, schedule and machine, without lowering."""
