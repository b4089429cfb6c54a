package sqlite

const childRole = "SETTLE_SQLITE_TEST_CHILD"

func child(string) {}
