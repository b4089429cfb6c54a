package postgres

const childRole = "SETTLE_POSTGRES_TEST_CHILD"

func child(string) {}
