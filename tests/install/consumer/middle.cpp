int middle() { return 0; }
