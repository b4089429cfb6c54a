module github.com/settlemq/settle

go 1.25.0
