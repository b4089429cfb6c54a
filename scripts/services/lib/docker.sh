docker_answers() { false; }
