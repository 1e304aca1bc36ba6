// A library of a user's between the registrar and the program.
int middle() { return 0; }
