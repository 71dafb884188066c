"""What is known of ATen graphs: the op set, traits of ops, fake values, ops of Turret's own."""
